"""The same scenario on machines of several owners: `simsplit serve`, `join` and `deploy`."""

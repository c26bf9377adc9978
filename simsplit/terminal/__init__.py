"""A terminal shows runs and sweeps while they go on, and tables when they are done."""

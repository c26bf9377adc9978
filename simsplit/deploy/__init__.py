"""Deployments run one scenario on the machines of several owners, with real connections.

The commands are `simsplit serve`, `simsplit join` and `simsplit deploy`.
"""

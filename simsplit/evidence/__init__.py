"""Evidence: what papers claim, what was measured here, and verdicts computed from both."""

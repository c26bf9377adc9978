"""What a run guarantees of clients' samples: the accountant, and the list of all that leaves."""

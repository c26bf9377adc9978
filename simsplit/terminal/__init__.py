"""What a terminal shows: runs and sweeps while they go on, tables when they are done."""

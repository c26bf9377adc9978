"""A run is scored by metrics over held-out data, and over texts that its model generates."""

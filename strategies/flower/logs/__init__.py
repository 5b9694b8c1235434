"""What a run writes to its log: rounds, waits, failures of a large fleet in few lines."""

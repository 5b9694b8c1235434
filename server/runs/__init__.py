"""A run on disk: its directory, rounds, scores and checkpoints."""

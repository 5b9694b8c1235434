"""A run on disk and in numbers: directory, rounds, scores, checkpoints, totals."""

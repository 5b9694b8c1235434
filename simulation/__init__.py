"""Everything in one process and virtual time, and studies without training."""

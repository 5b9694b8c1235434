"""Policies of other authors, for comparison: each as its paper has it, on measured times."""

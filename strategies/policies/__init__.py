"""Scheduling policies: the paper's, ours and the baselines."""

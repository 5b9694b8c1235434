"""Flower server: wires policy, aggregation, evaluation and the run directory together."""

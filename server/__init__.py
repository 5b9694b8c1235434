"""Flower server: wires policy, aggregation, evaluation and the run directory together."""

if "." not in __name__:  # a checkout is on sys.path: nothing is to be loaded twice
    raise ImportError("in a checkout, too, this package is flower_scheduling.server")

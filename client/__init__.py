"""Flower client: local training on a share of a data set behind an emulated link."""

if "." not in __name__:  # a checkout is on sys.path: nothing is to be loaded twice
    raise ImportError("in a checkout, too, this package is flower_scheduling.client")

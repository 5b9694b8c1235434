"""Simulation in one process and virtual time: runs, studies, the paper, benchmark, reports."""

import sys

if "." not in __name__ and sys.argv[0] != "-m":  # "-m" while Python looks for simulation.__main__
    raise ImportError("in a checkout, too, this package is flower_scheduling.simulation")

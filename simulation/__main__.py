"""``python -m simulation`` in a checkout, ``python -m flower_scheduling.simulation`` anywhere."""

from flower_scheduling.simulation.entry import simulation

simulation()

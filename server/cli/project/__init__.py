"""A Flower app of one's own, written into a new folder."""

"""A report of one run: what scheduling saved, and where the time went."""

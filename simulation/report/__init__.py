"""Report of a run: what scheduling saved, and where the time went."""

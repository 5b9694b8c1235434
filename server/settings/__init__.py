"""Settings of a run: fields, flags and their checks."""

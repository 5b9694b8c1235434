"""A page for the browser that shows a run, made of its run directory alone."""

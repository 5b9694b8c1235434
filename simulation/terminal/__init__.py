"""What the simulation's commands show on the terminal: bars, tables, and a plot of letters."""

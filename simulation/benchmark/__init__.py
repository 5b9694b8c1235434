"""The league: every policy over a suite of scenarios, against whoever knows everything."""

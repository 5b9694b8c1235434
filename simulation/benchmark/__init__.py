"""Benchmark: every policy over a suite of scenarios, relative to a clairvoyant oracle."""

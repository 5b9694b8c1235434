"""Environments: availability and times of clients, drawn or recorded."""

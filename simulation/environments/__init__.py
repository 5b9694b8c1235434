"""Availability and times of clients: drawn or recorded."""

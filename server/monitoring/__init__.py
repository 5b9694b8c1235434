"""A run watched from outside: status, alarms, Prometheus, trackers."""

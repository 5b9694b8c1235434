"""The programs flower-server and ``flower-certs``."""

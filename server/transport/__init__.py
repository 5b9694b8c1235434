"""Flower's Grid over gRPC streams, one for each client."""

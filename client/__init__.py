"""Flower client: local training on MNIST partitions behind an emulated link."""

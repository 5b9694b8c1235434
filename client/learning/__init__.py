"""The learning task of our own app: models, data, partitions."""

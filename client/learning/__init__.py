"""Learning task of our own app: data set, partitions, models, local training and evaluation."""

"""What carries a run: our streams, or Flower's SuperLink."""

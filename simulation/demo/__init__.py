"""The first look: what scheduling saves, on one screen."""

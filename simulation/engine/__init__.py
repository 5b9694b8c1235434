"""Engines that play rounds: virtual grid, batched training, studies, replays."""

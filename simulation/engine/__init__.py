"""What plays rounds: the virtual grid, the batched trainer, studies, replays."""

"""Buffered mode: channels that are refilled one by one, and updates of earlier models."""

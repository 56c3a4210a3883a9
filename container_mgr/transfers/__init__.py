"""Moves parts of checkpoints: between ranks over e0, between servers before a start, to stores."""

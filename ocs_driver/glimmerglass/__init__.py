"""Glimmerglass over TL1."""

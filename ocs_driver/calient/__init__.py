"""Calient S-series (S160, S320, Edge640) over TL1."""

"""Speaks SCPI over TCP: a pure codec, and one serialised connection per switch."""

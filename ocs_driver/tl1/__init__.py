"""Speaks TL1 (Telcordia GR-831): a pure codec, and one serialised session per switch."""

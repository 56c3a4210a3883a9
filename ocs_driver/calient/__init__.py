"""Controls Calient S-series switches (S160, S320, Edge640) over TL1."""

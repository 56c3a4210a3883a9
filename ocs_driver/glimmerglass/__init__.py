"""Controls Glimmerglass switches over TL1."""

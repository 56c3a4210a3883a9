"""Controls Polatis / HUBER+SUHNER switches over TL1, SCPI and NETCONF."""

"""Polatis / HUBER+SUHNER over TL1, SCPI and NETCONF."""

"""RoCEv2 for real on the emulated rack: soft-RoCE endpoints in QEMU guests."""

"""Runs real RoCEv2 on the emulated rack: soft-RoCE endpoints in QEMU guests."""

"""Slurm on the emulated rack: one slurmd per endpoint, in a namespace with the endpoint's NIC."""

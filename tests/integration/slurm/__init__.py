"""Tests of the rack under a real Slurm."""

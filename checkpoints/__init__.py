"""Decides about checkpoints near the job. Pure: no file is opened, no clock is read."""

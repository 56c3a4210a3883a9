"""The file systems, files and removal of checkpoints."""

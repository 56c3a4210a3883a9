"""Notices whole steps in the folders that ranks write."""

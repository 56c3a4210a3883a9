"""Implements other schedulers' placement, from their papers or sources, for comparison.

None of them moves light: endpoints keep their homes.
"""

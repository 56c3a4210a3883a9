"""Decides placement, regroup plans, the queue and ring order; every decision is a pure function.

No sockets, threads, clock or files; ``now`` and randomness are arguments.
"""

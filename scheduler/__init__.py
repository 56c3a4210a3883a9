"""Pure decisions: topology model, placement, regroup plans, ring order.

No sockets, threads, clock or files; ``now`` and randomness are arguments.
"""

"""Simulates the machine around the product: time, threads and the network, all by one seed.

A program under ``simulated`` runs on one thread. Its clock stands still while anything can run and
jumps to the next timer when nothing can. The product runs unchanged: it reads ``base.clock``,
waits with asyncio, and uses threads only through ``loop.run_in_executor``.
"""

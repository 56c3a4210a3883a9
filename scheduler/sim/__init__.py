"""Trace replay: workload traces through the production scheduler and its rivals.

``readers.read`` gives a ``trace.Trace``, ``policies.make_policy`` a policy, and
``engine.replay`` runs one under the other on a site. See docs/simulator.md.
"""

"""Replays workload traces under the production scheduler and other schedulers' policies.

``readers.read`` returns a ``trace.Trace``, ``policies.make_policy`` a policy, and
``engine.replay`` replays the trace under the policy on a site. See docs/simulator.md.
"""

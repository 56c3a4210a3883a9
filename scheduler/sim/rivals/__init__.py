"""Other schedulers' placement, each from its paper or source, to compare with in replays.

None of them moves light: endpoints keep the homes they start with.
"""

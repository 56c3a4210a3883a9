"""Prints what happens in a story of clients: ``PYTHONHASHSEED=0 python -m tests.stories SEED``."""

from __future__ import annotations

import asyncio
import sys
from random import Random

import structlog

from testbed.simulated.loop import VirtualPolicy
from tests.stories.clients import Step, story

KINDS = ["cancel", "pause", "resume", "regroup", "drain", "undrain", "exit", "lose", "slow"]


def main(seed: int) -> None:
    """Draw a story by ``seed``, tell it, and print it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.set_event_loop_policy(VirtualPolicy())
    dice = Random(seed)  # noqa: S311 - a story's dice
    steps = [Step("submit", job, 0, dice.randint(1, 4)) for job in "abc"]
    steps += [
        Step(dice.choice(KINDS), dice.choice("abc"), dice.randrange(0, 3000), dice.randint(1, 5))
        for _ in range(8)
    ]
    print(story(steps, seed))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Prints what happens in stories: ``PYTHONHASHSEED=0 python -m tests.stories SEED [KIND ...]``."""

from __future__ import annotations

import argparse
import asyncio

import structlog

from testbed.simulated.loop import VirtualPolicy
from tests.stories.kinds import KINDS


def main() -> None:
    """Draw a story of each kind by the seed, and print it with what happens."""
    about = "\n".join(f"  {name:12} {kind.about}" for name, kind in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.stories",
        description="Tell stories: the seed draws what happens, and in which order.",
        epilog=f"kinds:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="all without any")
    options = parser.parse_args()
    if unknown := set(options.kinds) - KINDS.keys():
        parser.error(f"no kind of stories: {', '.join(sorted(unknown))}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.set_event_loop_policy(VirtualPolicy())
    for name in options.kinds or KINDS:
        kind = KINDS[name]
        story = kind.drawn(options.seed)
        print(f"{name}: {story}")
        try:
            print(kind.tell(story, options.seed))
        except AssertionError as error:
            print(*error.__notes__, f"broken: {error}", sep="\n")


if __name__ == "__main__":
    main()

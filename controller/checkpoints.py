"""Whether a job that was asked to stop has written its checkpoint. Pure.

A rank says so by ending with 0 (or by SIGTERM itself, when it has nothing to write) within the
time its job has named. A full disk, a slow store, a crash on the way: the move is not worth the
work since the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.engine import RankStatus

_KILLED, _TERMINATED = 128 + 9, 128 + 15
"""Exit codes of a process that a signal ended, as Docker and shells write them."""


def unwritten(job: str, ended: Iterable[RankStatus], grace_s: float) -> str:
    """Say which rank did not finish its checkpoint and why; empty when all have."""
    for rank in sorted(ended, key=lambda status: status.rank):
        code = rank.exit_code
        if code in (None, 0, _TERMINATED):
            continue
        what = (
            f"was killed after {grace_s:g} s, its checkpoint not finished; raise checkpoint_grace_s"
            if code == _KILLED and not rank.oom
            else f"ended with {code} while it wrote its checkpoint; see `lightloom logs {job}`"
        )
        return f"rank {rank.rank} of {job} {what}"
    return ""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.jobs import restart_policy, watch
from controller.service import service
from sitefile import load_site
from sitefile.recovery import RecoveryPolicy
from tests.unit.controller.fakes import PAPER, Rack


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often: these stories are about what happens, not about when."""
    for wait in ("FIRST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(restart_policy, wait, 0.02)
    monkeypatch.setattr(watch, "UNFIT_ROUNDS", 2)
    for loop in ("REPAIR_EVERY_S", "OBSERVE_EVERY_S", "FLUSH_EVERY_S", "WATCH_EVERY_S"):
        monkeypatch.setattr(service, loop, 0.02)


def rack_with(folder: Path, *spares: str, lost_after_s: float = 5.0) -> Rack:
    """Return the paper's rack with some endpoints kept as spares of the site."""
    folder.mkdir(exist_ok=True)
    policy = RecoveryPolicy(frozenset(spares), lost_after_s)
    return Rack(folder, replace(load_site(PAPER), recovery=policy))

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sitefile import load_site
from sitefile.recovery import RecoveryPolicy
from tests.unit.controller.fakes import PAPER, Rack


def rack_with(folder: Path, *spares: str) -> Rack:
    """Return the paper's rack with some endpoints kept as spares of the site."""
    folder.mkdir(exist_ok=True)
    return Rack(folder, replace(load_site(PAPER), recovery=RecoveryPolicy(frozenset(spares))))

"""Changes the link rates of a running rack."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sitefile import load_site
from testbed.rack import preflight, record, shaping
from testbed.rack.errors import RackError
from testbed.rack.layout import lay_out


def set_rates(run_dir: Path, access_bps: float, inter_bps: float) -> None:
    """Set all fibers to ``access_bps`` and all uplinks to ``inter_bps``, under traffic.

    Raises RackError(conflict) when no rack is up, RackError(invalid) for an invalid rate.
    """
    preflight.need_root()
    rates = (
        shaping.check_rate("access_bps", access_bps),
        shaping.check_rate("inter_aggregator_bps", inter_bps),
    )
    written = record.load(run_dir)
    if written is None or written.phase != "up":
        raise RackError(
            "conflict", "no rack is up", object="rack", hint="run `lightloom testbed up`"
        )
    layout = lay_out(load_site(record.site_copy(run_dir)))
    for netns, lines in shaping.change_lines(layout, *rates).items():
        shaping.run_tc(netns, lines)
    changed = dataclasses.replace(
        written, access_bps=float(access_bps), inter_aggregator_bps=float(inter_bps)
    )
    record.save(run_dir, changed)

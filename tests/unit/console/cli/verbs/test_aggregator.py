"""``aggregator probe``: prints what was measured, and fails when jobs would lack something."""

from __future__ import annotations

from controller.devices.profile import Profile, Trial
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run


def test_a_probe_prints_the_facts_and_the_wide_list_has_them(run: Run, rack: Rack) -> None:
    rack.aggregators.profiles["as0"] = Profile(
        manufacturer="ACME",
        hardware="AS-1",
        metadata_bits=64,
        trials=(Trial(name="queue", outcome="same"),),
    )
    ran = run("aggregator", "probe", "aggregator/as0")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].split() == ["switch", "ACME", "AS-1"]
    assert "barrier means done  unknown" in ran.out
    assert "AS-1" in run("get", "aggregators", "-o", "wide").out


def test_what_jobs_need_and_it_lacks_is_exit_code_1(run: Run, rack: Rack) -> None:
    rack.aggregators.profiles["as0"] = Profile(hardware="AS-1", metadata_bits=12)
    ran = run("aggregator", "probe", "as0", "-o", "json")
    assert (ran.code, ran.document["metadata_bits"]) == (1, 12)
    assert "as0 lacks what jobs need: metadata" in ran.err


def test_one_that_is_away_or_unknown_says_so(run: Run, rack: Rack) -> None:
    rack.aggregators.away.add("as0")
    assert run("aggregator", "probe", "as0").code != 0

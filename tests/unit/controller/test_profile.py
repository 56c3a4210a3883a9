"""What a probe of an aggregator is judged by."""

from __future__ import annotations

from dataclasses import replace

from controller.devices.profile import (
    Profile,
    TableFacts,
    Trial,
    differences,
    judge,
    worst_case,
)
from tests.parts.openflow.sites import make_site

WHOLE = Profile(hardware="AS-1", metadata_bits=64, barrier=True, durations=True)
ROOM = (100, 10, 10)


def facts(**fields: int) -> TableFacts:
    mask = (1 << 64) - 1
    given = {"max_entries": 1000, "metadata_match": mask, "metadata_write": mask, **fields}
    return TableFacts(table=0, matches=(), **given)


def found(profile: Profile) -> dict[str, str]:
    return {finding.fact: finding.severity for finding in judge(profile, ROOM)}


def test_a_switch_that_lacks_nothing_has_no_findings() -> None:
    assert judge(replace(WHOLE, facts=(facts(),)), ROOM) == ()


def test_each_missing_thing_has_a_finding_with_its_mend() -> None:
    poor = replace(
        WHOLE,
        metadata_bits=12,
        barrier=False,
        durations=False,
        facts=(facts(max_entries=50),),
        trials=(
            Trial(name="admit_arp", outcome="refused", detail="OFPET_BAD_MATCH"),
            Trial(name="group_watch", outcome="altered"),
            Trial(name="queue", outcome="unknown"),
            Trial(name="roce", outcome="same"),
        ),
    )
    assert found(poor) == {
        "metadata": "error",
        "features": "info",
        "admit_arp": "error",
        "group_watch": "warning",
        "queue": "warning",
        "room": "warning",
        "barrier": "error",
        "durations": "info",
    }
    assert all(finding.mend for finding in judge(poor, ROOM))


def test_what_is_unknown_is_said_and_never_an_error() -> None:
    silent = Profile(trials=(Trial(name="admit_arp", outcome="unknown"),))
    assert found(silent) == {"metadata": "warning", "admit_arp": "warning", "model": "info"}


def test_a_change_is_named_and_silence_is_none() -> None:
    old = replace(WHOLE, trials=(Trial(name="queue", outcome="same"),))
    new = replace(
        WHOLE,
        software="2.0",
        metadata_bits=32,
        barrier=None,
        trials=(Trial(name="queue", outcome="refused"),),
    )
    assert differences(old, new) == (
        "software:  -> 2.0",
        "queue: same -> refused",
        "metadata_bits: 64 -> 32",
    )
    assert differences(old, old) == ()


def test_the_worst_case_counts_every_endpoint_at_every_way_in() -> None:
    site = make_site()
    n = len(site.endpoints)
    arrivals = max(1, sum("as0" in (u.a.device, u.b.device) for u in site.uplinks))
    assert worst_case(site, "as0") == (2 * n * arrivals + n + 3, n + 2, 2 * n + 1)

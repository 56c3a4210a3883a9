"""Tests state files, the planner's offline input, in the short and in the full form of a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.model import Objective, Policy, Spread, SpreadBy
from sitefile import SiteFileError, load_planner_site, load_state
from tests.parts.sites import PAPER

STATE: dict[str, Any] = {
    "site": {
        "aggregators": [
            {"name": "as0", "ports": {"ocs0": 2}},
            {"name": "as1", "ports": {"ocs0": 2}},
        ],
        "endpoints": [
            {"name": "gpu0", "ocs": "ocs0"},
            {"name": "gpu1", "ocs": "ocs0"},
            {"name": "gpu2", "fixed": "as1"},
        ],
    },
    "homes": {"gpu0": "as0", "gpu1": None},
    "jobs": [{"name": "red", "endpoints": ["gpu0", "gpu2"], "policy": "live", "weight": 2.0}],
    "limits": {"objective": "moves", "max_moves": 3},
}


def write(tmp_path: Path, document: Any) -> Path:
    file = tmp_path / "state.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_short_form(tmp_path: Path) -> None:
    fabric, limits = load_state(write(tmp_path, STATE))
    assert fabric.homes == {"gpu0": "as0", "gpu1": None, "gpu2": "as1"}
    assert fabric.jobs[0].policy is Policy.LIVE
    assert next(a for a in fabric.site.aggregators if a.name == "as1").size == 3
    assert limits.objective is Objective.MOVES
    assert limits.max_moves == 3


def test_a_job_has_spread_and_spares(tmp_path: Path) -> None:
    job = {"name": "red", "endpoints": ["gpu0"], "spread": {"by": "aggregator", "most": 2}}
    document = STATE | {"jobs": [job | {"spares": ["gpu1"]}]}
    fabric, _ = load_state(write(tmp_path, document))
    assert fabric.jobs[0].spread == Spread(SpreadBy.AGGREGATOR, 2)
    assert fabric.jobs[0].spares == ("gpu1",)
    assert fabric.unavailable == {"gpu1"}
    with pytest.raises(SiteFileError) as error:
        load_state(write(tmp_path, STATE | {"jobs": [job | {"spares": ["gpu0", "gpu9"]}]}))
    assert [p.path for p in error.value.problems] == ["jobs[0].spares[0]", "jobs[0].spares[1]"]


def test_site_by_path(tmp_path: Path) -> None:
    (tmp_path / "rack.yaml").write_text(PAPER.read_text())
    fabric, _ = load_state(write(tmp_path, {"site": "rack.yaml", "homes": {"gpu0": "as1"}}))
    assert fabric.homes["gpu0"] == "as1"
    assert fabric.homes["gpu1"] is None
    assert load_planner_site(PAPER) == fabric.site
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(STATE["site"]))
    assert len(load_planner_site(short).endpoints) == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"homes": {"gpu7": "as0"}}, "homes.gpu7: unknown endpoint 'gpu7'"),
        ({"homes": {"gpu0": "as7"}}, "homes.gpu0: unknown aggregator 'as7'"),
        ({"homes": {"gpu2": "as0"}}, "gpu2 is hard-wired to as1"),
        ({"jobs": [{"name": "a", "endpoints": ["gpu0", "gpu0"]}]}, "gpu0 already belongs to a"),
        (
            {"jobs": [{"name": "a", "endpoints": ["gpu9"]}]},
            "jobs[0].endpoints[0]: unknown endpoint",
        ),
        (
            {"jobs": [{"name": "a", "endpoints": ["gpu0"]}, {"name": "a", "endpoints": ["gpu1"]}]},
            "job 'a' is listed twice",
        ),
        (
            {"jobs": [{"name": "a", "endpoints": []}]},
            "jobs[0].endpoints: must have 1 or more entries",
        ),
        (
            {"jobs": [{"name": "a", "endpoints": ["gpu0", "gpu1", "gpu2", "gpu3"]}]},
            "jobs[0].endpoints: job 'a' holds 4 endpoints, the site has 3",
        ),
        (
            {
                "jobs": [
                    {"name": "a", "endpoints": ["gpu0"]},
                    {"name": "b", "endpoints": ["gpu1", "gpu0"]},
                ]
            },
            "jobs[1].endpoints[1]: gpu0 already belongs to a",
        ),
        ({"jobs": [{"name": "a", "endpoints": ["gpu0"], "gpus": 1}]}, "jobs[0].gpus: unknown key"),
        ({"limits": {"time_limit_s": -1}}, "limits.time_limit_s: must be more than 0"),
        ({"limits": {"max_moves": -1}}, "limits.max_moves"),
        (
            {"jobs": [{"name": "a", "endpoints": ["gpu0"], "weight": float("inf")}]},
            "jobs[0].weight",
        ),
        ({"homes": {"gpu0": "as0", "gpu1": ["as0"]}}, "homes.gpu1"),
        ({"limits": {"objective": "speed"}}, "limits.objective"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"site": {"aggregators": [], "endpoints": []}}, "site"),
    ],
)
def test_mistakes(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(SiteFileError) as caught:
        load_state(write(tmp_path, {**STATE, **change}))
    assert expected in str(caught.value)


def test_more_homes_than_ports(tmp_path: Path) -> None:
    state = {
        "site": {
            "aggregators": [{"name": "as0", "ports": {"ocs0": 1}}],
            "endpoints": [{"name": "a", "ocs": "ocs0"}, {"name": "b", "ocs": "ocs0"}],
        },
        "homes": {"a": "as0", "b": "as0"},
    }
    with pytest.raises(SiteFileError, match="as0 has 1 ports on ocs0"):
        load_state(write(tmp_path, state))


def test_endpoint_on_an_unknown_switch_or_two_sides(tmp_path: Path) -> None:
    site = {
        "aggregators": [{"name": "as0", "ports": {"ocs0": 1}}],
        "endpoints": [{"name": "a", "ocs": "ocs9"}, {"name": "b", "fixed": "as9"}],
    }
    with pytest.raises(SiteFileError) as caught:
        load_state(write(tmp_path, {"site": site}))
    assert len(caught.value.problems) == 2
    site["endpoints"] = [{"name": "a", "ocs": "ocs0", "fixed": "as0"}]
    with pytest.raises(SiteFileError, match="either ocs, or fixed"):
        load_state(write(tmp_path, {"site": site}))


def test_a_large_file_with_many_mistakes_names_them_all(tmp_path: Path) -> None:
    names = [f"g{i}" for i in range(500)]
    state = {
        "site": {
            "aggregators": [{"name": "as0", "ports": {"ocs0": 500}}],
            "endpoints": [{"name": n, "ocs": "ocs0"} for n in names],
        },
        "homes": dict.fromkeys(names, "as1"),
    }
    with pytest.raises(SiteFileError) as caught:
        load_state(write(tmp_path, state))
    assert len(caught.value.problems) == 500
    state["homes"] = dict.fromkeys(names, "as0")
    fabric, _ = load_state(write(tmp_path, state))
    assert set(fabric.homes.values()) == {"as0"}

"""Tests the site file's sections on projects, queue and automatic regroups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.policy.budgets import PauseBudget
from scheduler.queue.model import ProjectShare
from sitefile import SiteFileError, SiteLinkRates, load_site
from tests.parts.sites import PAPER
from tests.unit.sitefile.written import written


def test_the_default_is_one_project_without_triggers() -> None:
    scheduling = load_site(PAPER).scheduling
    assert scheduling.projects == (ProjectShare("default"),)
    assert not scheduling.named
    assert not scheduling.regroup.triggers.automatic
    assert scheduling.regroup.budget == PauseBudget()


def test_every_section_is_read(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        projects=[{"name": "vision", "weight": 2, "quota": 4}],
        queue={"backfill_depth": 7, "aging_s": 60},
        regroup={
            "cooldown_s": 300,
            "max_pauses_per_job_hour": 2,
            "worth": "proven",
            "rates": {"access_bps": 1e11, "inter_aggregator_bps": 4e11},
            "triggers": {
                "threshold": {"excess_span": 3, "for_s": 30},
                "pending": True,
                "schedule": {"every_s": 3600, "daily_at": ["02:30"]},
            },
        },
    )
    scheduling = load_site(file).scheduling
    assert scheduling.projects == (ProjectShare("default"), ProjectShare("vision", 2.0, 4))
    assert scheduling.named
    assert (scheduling.queue.backfill_depth, scheduling.queue.aging_s) == (7, 60.0)
    regroup = scheduling.regroup
    assert regroup.budget == PauseBudget(300.0, 2.0)
    assert not regroup.accept_open
    assert regroup.rates == SiteLinkRates(1e11, 4e11)
    triggers = regroup.triggers
    assert triggers.automatic
    assert (triggers.excess_span, triggers.excess_for_s, triggers.pending) == (3, 30.0, True)
    assert (triggers.every_s, triggers.daily_at_s) == (3600.0, (9000.0,))


def test_users_priorities_are_limited_for_all_projects_and_for_one(tmp_path: Path) -> None:
    assert load_site(written(tmp_path)).scheduling.highest_priority("default") == 5
    vision = {"name": "vision", "max_priority": 0}
    file = written(tmp_path, queue={"max_priority": 2}, projects=[vision, {"name": "speech"}])
    scheduling = load_site(file).scheduling
    assert [scheduling.highest_priority(p) for p in ("vision", "speech", "new")] == [0, 2, 2]


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"projects": [{"name": "vision", "weight": 0}]}, "projects[0].weight"),
        ({"projects": [{"name": "vision", "weight": float("inf")}]}, "projects[0].weight"),
        ({"projects": [{"name": "vision", "weight": float("nan")}]}, "projects[0].weight"),
        ({"queue": {"aging_s": float("inf")}}, "queue.aging_s"),
        ({"projects": [{"name": "vision", "quota": -1}]}, "projects[0].quota"),
        ({"projects": [{"name": "a"}, {"name": "a"}]}, "projects[1].name"),
        ({"projects": [{"name": "a", "max_priority": 101}]}, "projects[0].max_priority"),
        ({"queue": {"agingg": 1}}, "queue.agingg"),
        ({"queue": {"max_priority": -101}}, "queue.max_priority"),
        ({"regroup": {"cooldown_s": -1}}, "regroup.cooldown_s"),
        ({"regroup": {"worth": "always"}}, "regroup.worth"),
        ({"regroup": {"triggers": {"threshold": {}}}}, "regroup.triggers.threshold.excess_span"),
        (
            {"regroup": {"triggers": {"schedule": {"daily_at": ["25:00"]}}}},
            "regroup.triggers.schedule.daily_at[0]",
        ),
    ],
)
def test_bad_sections_name_the_path(tmp_path: Path, sections: dict[str, Any], path: str) -> None:
    with pytest.raises(SiteFileError) as caught:
        load_site(written(tmp_path, **sections))
    assert path in [problem.path for problem in caught.value.problems]

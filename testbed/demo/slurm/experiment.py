"""Runs all arms on the rack under Slurm, and writes the result."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sitefile import load_site
from testbed import rack
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.experiment import PAPER_SITE
from testbed.demo.slurm import plots, report
from testbed.demo.slurm.measure import MixtureRunner
from testbed.demo.slurm.mixture import MixturePlan, parse_arms
from testbed.demo.stage import brought_up, make_folder, write
from testbed.mortal import taken_over
from testbed.rack import preflight, record
from testbed.rack.slurm import programs
from testbed.rack.slurm.config import UnderSlurm

TRIGGERS = """
regroup:
  cooldown_s: 20
  triggers: {threshold: {excess_span: 1, for_s: 5}, pending: true, min_interval_s: 10}
"""
"""Added to the site file: when running jobs are regrouped, and for which waiting jobs."""
SITE_FILE = "demo-slurm-site.yaml"
RESULT_FILE = "demo-slurm.json"

Progress = Callable[[str], None]


def run(
    *,
    arms: Sequence[str] | None = None,
    plan: MixturePlan | None = None,
    out_dir: Path,
    site_path: Path | None = None,
    run_dir: Path = rack.RUN_DIR,
    progress: Progress,
) -> Document:
    """Run the arms, write plots and figures to ``out_dir``, and return the result.

    Brings a rack up under Slurm and takes it down again: the arms without lightloom need one whose
    controller may be stopped. Raises DemoError, RackError, SiteFileError.
    """
    chosen, plan = parse_arms(arms), plan or MixturePlan()
    plan.check()
    preflight.need_root()
    make_folder(out_dir)
    if rack.status(run_dir).state != "down":
        raise DemoError(
            "conflict",
            "a rack is up, and this demo stops its controller",
            object="rack",
            hint="run `lightloom testbed down`, then try again",
        )
    given = (site_path or PAPER_SITE).read_text(encoding="utf-8")
    with_triggers = out_dir / SITE_FILE
    with_triggers.write_text(given + TRIGGERS, encoding="utf-8")
    site = load_site(with_triggers)
    if len(site.endpoints) < plan.most_ranks:
        raise DemoError(
            "invalid",
            f"site {site.name} has {len(site.endpoints)} endpoints, jobs have {plan.most_ranks}",
            object=f"site/{site.name}",
            hint="use another site file",
        )
    progress("bringing the rack up, under Slurm")
    with (
        brought_up(with_triggers, run_dir, progress, UnderSlurm()) as status,
        Controller(status.url) as controller,
        taken_over(status, run_dir) as mortal,
    ):
        emulated = controller.get("/health")["emulated"]
        under_slurm = load_site(record.site_copy(run_dir))
        work = MixtureRunner(under_slurm, run_dir, controller, mortal, plan, progress)
        try:
            done = [work.run(arm) for arm in chosen]
        except DemoError as error:
            kept = _keep_outputs(run_dir, out_dir)
            raise DemoError(error.code, error.message, object=error.object, hint=kept) from error
    files = plots.draw(done, out_dir)
    result = report.document(site.name, plan, done, plots=files, emulated=emulated)
    raw = {
        one.arm.value: {
            "jobs": [dataclasses.asdict(job) for job in one.done],
            "homes": [{"at": at, "homes": dict(homes)} for at, homes in one.timeline],
        }
        for one in done
    }
    write(out_dir, "slurm", result, raw)
    report.check(result)
    return result


def _keep_outputs(run_dir: Path, out_dir: Path) -> str:
    """Copy what the jobs printed out of the rack, which is taken down; report the path."""
    folder = out_dir / "outputs"
    folder.mkdir(exist_ok=True)
    for path in (programs.folder_of(run_dir) / "tmp").glob("*.out"):
        shutil.copy(path, folder)
    return f"what the jobs printed is in {folder}"

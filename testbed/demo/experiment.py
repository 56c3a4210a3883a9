"""Runs the experiment: rack, calibration, link rates, arms, result and clean-up."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import testbed
from sitefile import CabledSite, load_site
from testbed import rack
from testbed.demo import calibrate, homes, plots, report
from testbed.demo.api import Controller, Document
from testbed.demo.cases import Case, Places, find_case, parse_arms, scattered
from testbed.demo.errors import DemoError
from testbed.demo.jobs import ENDED, Jobs
from testbed.demo.measure import Experiment, Measured, run_arm
from testbed.demo.rule import (
    Calibration,
    Rates,
    crossings,
    derive_rates,
    fixed_samples,
    predicted_step_s,
)
from testbed.rack import preflight

PAPER_SITE = Path(testbed.__file__).parent / "sites" / "paper.yaml"

Progress = Callable[[str], None]


def run(
    case: str,
    *,
    arms: Sequence[str] | None = None,
    out_dir: Path,
    site_path: Path | None = None,
    run_dir: Path = rack.RUN_DIR,
    recalibrate: bool = False,
    progress: Progress,
) -> Document:
    """Run case ``a`` or ``b``, write plots and figures to ``out_dir``, and return the result.

    A rack that is up is used and stays up, with its previous link rates; otherwise one is
    brought up and taken down again. ``arms`` None means all. Raises DemoError, RackError,
    SiteFileError; jobs are cancelled in every case.
    """
    chosen_case, chosen_arms = find_case(case), parse_arms(arms)
    preflight.need_root()
    _make_folder(out_dir)
    with _rack(site_path, run_dir, progress) as status, Controller(status.url) as controller:
        site = load_site(Path(status.site_file))
        places = scattered(site, chosen_case)
        _require_idle(controller)
        with _tidied(controller, progress) as jobs:
            run_id = secrets.token_hex(2)
            measured = calibrate.known_or_measured(
                jobs, site, status.image, run_id=run_id, recalibrate=recalibrate, progress=progress
            )
            rates = derive_rates(measured)
            progress(f"link rates by rule: {rates.rule}")
            rack.set_rates(run_dir, rates.access_bps, rates.inter_aggregator_bps)
            experiment = Experiment(
                controller=controller,
                jobs=jobs,
                case=chosen_case,
                places=places,
                samples=samples_of(chosen_case, places, site, measured, rates),
                image=status.image,
                homes=site.homes,
                run_id=run_id,
                progress=progress,
            )
            done = [run_arm(experiment, arm) for arm in chosen_arms]
        emulated = controller.get("/health")["emulated"]
    result = report.document(
        chosen_case,
        site.name,
        rates,
        {measured.arm: measured.figures for measured in done},
        plots=plots.draw(chosen_case.name, done, out_dir),
        emulated=emulated,
    )
    write(out_dir, chosen_case, result, done)
    report.check(result)
    return result


def samples_of(
    case: Case, places: Places, site: CabledSite, measured: Calibration, rates: Rates
) -> int:
    """Return the number of samples that every arm trains."""
    step_s = predicted_step_s(
        measured,
        rates,
        case.red.count,
        case.red.global_batch // case.red.count,
        own=crossings(places.red, site.homes),
        others=crossings(places.blue, site.homes),
    )
    return fixed_samples(step_s, case.red.global_batch)


@contextmanager
def _rack(site_path: Path | None, run_dir: Path, progress: Progress) -> Iterator[rack.RackStatus]:
    """Yield a rack that is up; restore its previous state afterwards."""
    found = rack.status(run_dir)
    if found.state == "down":
        progress("bringing the rack up")
        brought_up = rack.up(site_path or PAPER_SITE, run_dir, progress=progress)
        try:
            yield brought_up
        finally:
            progress("taking the rack down")
            rack.down(run_dir, progress=lambda line: None)
        return
    if found.state != "up":
        raise DemoError(
            "conflict",
            f"the rack is {found.state}",
            object="rack",
            hint="run `lightloom testbed down`, then try again",
        )
    if site_path is not None and Path(found.site_file).resolve() != site_path.resolve():
        raise DemoError(
            "conflict",
            f"the running rack uses another site file: {found.site_file}",
            object="rack",
            hint="run `lightloom testbed down`, or omit --site",
        )
    try:
        yield found
    finally:
        try:
            rack.set_rates(run_dir, found.access_bps, found.inter_aggregator_bps)
        except rack.RackError as error:  # an error of the run itself has priority
            progress(f"the link rates could not be restored: {error.message}")


@contextmanager
def _tidied(controller: Controller, progress: Progress) -> Iterator[Jobs]:
    """Cancel the remaining jobs at the end, and move the endpoints back to their homes."""
    jobs = Jobs(controller)
    found = homes.present(controller)
    try:
        yield jobs
    except BaseException:
        progress("cancelling the demo's jobs")
        try:
            jobs.end_all()
            homes.restore(controller, found)
        except DemoError as error:  # the first error has priority
            progress(f"the clean-up failed: {error.message}")
        raise
    homes.restore(controller, found)


def _make_folder(out_dir: Path) -> None:
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(
            "invalid",
            f"the folder {out_dir} cannot be created: {error.strerror}",
            object=str(out_dir),
            hint="choose another folder with --out",
        ) from error


def _require_idle(controller: Controller) -> None:
    busy = [job["name"] for job in controller.items("/jobs") if job["state"] not in ENDED]
    if busy:
        raise DemoError(
            "conflict",
            f"the rack is in use by {', '.join(busy)}",
            object=f"job/{busy[0]}",
            hint="the experiment needs an idle rack: lightloom cancel",
        )


def write(out_dir: Path, case: Case, result: Document, arms: Sequence[Measured]) -> None:
    """Write the result and all steps and samples that it is computed from."""
    raw = {
        measured.arm.value: {
            "started_at": measured.started_at,
            "ended_at": measured.ended_at,
            "transaction": measured.transaction,
            "steps": [dataclasses.asdict(step) for step in measured.steps],
            "series": measured.series,
        }
        for measured in arms
    }
    for name, data in ((f"demo-{case.name}.json", result), (f"demo-{case.name}-raw.json", raw)):
        (out_dir / name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

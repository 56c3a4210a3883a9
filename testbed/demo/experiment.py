"""Runs the experiment: rack, calibration, link rates, arms, result and clean-up."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import testbed
from sitefile import CabledSite, load_site
from testbed import rack
from testbed.demo import calibrate, plots, report
from testbed.demo.api import Controller, Document
from testbed.demo.cases import PaperCase, Places, find_case, parse_arms, scattered
from testbed.demo.measure import CaseExperiment, CaseResult, run_arm
from testbed.demo.rule import (
    Base,
    LinkRates,
    TrainerCalibration,
    crossings,
    derive_rates,
    fixed_samples,
    predicted_step_s,
)
from testbed.demo.stage import make_folder, rack_for, require_idle, tidied, write
from testbed.rack import preflight

PAPER_SITE = Path(testbed.__file__).parent / "sites" / "paper.yaml"
UNSHAPED_BPS = 1e11
"""A rate that nothing reaches on one machine."""

Progress = Callable[[str], None]


def run(
    case: str,
    *,
    arms: Sequence[str] | None = None,
    out_dir: Path,
    site_path: Path | None = None,
    run_dir: Path = rack.RUN_DIR,
    recalibrate: bool = False,
    rates_from: Base = Base.RING,
    progress: Progress,
) -> Document:
    """Run case ``a`` or ``b``, write plots and figures to ``out_dir``, and return the result.

    ``rates_from`` is the measured step that gives the link rates. A rack that is up is used and
    stays up, with its previous link rates; otherwise one is brought up and taken down again.
    ``arms`` None means all. Raises DemoError, RackError, SiteFileError; jobs are cancelled in
    every case.
    """
    chosen_case, chosen_arms = find_case(case), parse_arms(arms)
    preflight.need_root()
    make_folder(out_dir)
    with (
        rack_for(
            site_path or PAPER_SITE, run_dir, progress, chosen=site_path is not None
        ) as status,
        Controller(status.url) as controller,
    ):
        site = load_site(Path(status.site_file))
        places = scattered(site, chosen_case)
        require_idle(controller)
        with tidied(controller, progress) as jobs:
            run_id = secrets.token_hex(2)
            measured = calibrate.known_or_measured(
                jobs,
                site,
                status.image,
                run_id=run_id,
                recalibrate=recalibrate,
                unshape=partial(rack.set_rates, run_dir, UNSHAPED_BPS, UNSHAPED_BPS),
                progress=progress,
            )
            rates = derive_rates(measured, rates_from)
            progress(f"link rates by rule: {rates.rule}")
            rack.set_rates(run_dir, rates.access_bps, rates.inter_aggregator_bps)
            experiment = CaseExperiment(
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
    write(out_dir, chosen_case.name, result, {one.arm.value: raw(one) for one in done})
    report.check(result)
    return result


def samples_of(
    case: PaperCase,
    places: Places,
    site: CabledSite,
    measured: TrainerCalibration,
    rates: LinkRates,
) -> int:
    """Return the number of samples that every arm trains."""
    step_s = predicted_step_s(
        measured,
        rates,
        case.red.count,
        case.red.batch,
        own=crossings(places.red, site.homes),
        others=crossings(places.blue, site.homes),
    )
    return fixed_samples(step_s, case.red.global_batch)


def raw(measured: CaseResult) -> Document:
    """Return all steps and samples that an arm's figures are computed from."""
    return {
        "started_at": measured.started_at,
        "ended_at": measured.ended_at,
        "transaction": measured.transaction,
        "steps": [dataclasses.asdict(step) for step in measured.steps],
        "series": measured.series,
    }

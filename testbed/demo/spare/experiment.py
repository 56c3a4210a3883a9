"""Runs all arms on the rack with room for spares, and writes the result."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import testbed
from sitefile import load_site
from testbed import rack
from testbed.demo import homes
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.spare import plots, report
from testbed.demo.spare.arms import SparePlan, parse_arms
from testbed.demo.spare.measure import SpareRunner
from testbed.demo.stage import make_folder, rack_for, require_idle, write
from testbed.rack import preflight

SPARE_SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"

Progress = Callable[[str], None]


def run(
    *,
    arms: Sequence[str] | None = None,
    plan: SparePlan | None = None,
    out_dir: Path,
    site_path: Path | None = None,
    run_dir: Path = rack.RUN_DIR,
    progress: Progress,
) -> Document:
    """Run the arms, write plots and figures to ``out_dir``, and return the result.

    A rack that is up is used and stays up; otherwise one is brought up and taken down again.
    Raises DemoError, RackError, SiteFileError; jobs are cancelled and the GPU repaired in every
    case.
    """
    chosen, plan = parse_arms(arms), plan or SparePlan()
    plan.check()
    preflight.need_root()
    make_folder(out_dir)
    site_is_chosen = site_path is not None
    with (
        rack_for(site_path or SPARE_SITE, run_dir, progress, chosen=site_is_chosen) as status,
        Controller(status.url) as controller,
    ):
        site = load_site(Path(status.site_file))
        if len(site.endpoints) <= plan.ranks:
            raise DemoError(
                "invalid",
                f"site {site.name} has {len(site.endpoints)} endpoints: none is left as a spare",
                object=f"site/{site.name}",
                hint=f"take the rack down, or use {SPARE_SITE}",
            )
        require_idle(controller)
        work = SpareRunner(controller, run_dir, plan, status.image, secrets.token_hex(2), progress)
        done = []
        with _ended(work):
            for arm in chosen:
                homes.restore(controller, dict(site.homes))
                done.append(work.run(arm))
            homes.restore(controller, dict(site.homes))
        emulated = controller.get("/health")["emulated"]
    files = plots.draw(plan, done, out_dir)
    result = report.document(site.name, plan, done, plots=files, emulated=emulated)
    raw = {
        one.arm.value: {
            "lost_at": one.lost_at,
            "lost": one.lost,
            "runs": [dataclasses.asdict(run) for run in one.runs],
        }
        for one in done
    }
    write(out_dir, "spare", result, raw)
    report.check(result)
    return result


@contextmanager
def _ended(work: SpareRunner) -> Iterator[None]:
    """End the arm that runs when it fails; the first error has priority."""
    try:
        yield
    except BaseException:
        work.progress("cancelling the demo's jobs")
        try:
            work.end()
        except (DemoError, rack.RackError) as error:
            work.progress(f"the clean-up failed: {error.message}")
        raise

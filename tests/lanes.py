"""``python -m tests.lanes [-n N] [PATH]... [PYTEST OPTION]...``: tests of racks, in parallel lanes.

A unit is a folder of tests that share a rack, a few small modules, or a single one. It gets a
fresh lane; the longest of the last run is first. Modules that need the machine run outside, one at
a time. Without a path everything in ``tests/integration`` runs but what is marked ``soak``.

Each unit's output is in a file of ``out/tests/rack``. The last lines say for every unit what ran,
for how long, and how to run it alone. Ends with 1 if a unit failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from testbed import lanes
from testbed.guests.parts import install
from testbed.lanes import racks
from testbed.roce import guest as roce
from testbed.setup import image
from testbed.storage import guest as storage
from testbed.token import VARIABLE
from tests import gates

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("tests/integration")
TOGETHER = ("paper", "slurm", "training")
"""Folders whose tests share a rack."""
SMALL = ("agent",)
"""Modules whose names begin so are too short for a lane each: they share one."""
OUTSIDE = ("install", "lanes")
"""Modules that look at the machine, or make lanes themselves."""
LOGS = gates.LOGS / gates.RACK
TIMES = Path("/var/lib/lightloom/test-times.json")
"""Seconds of every unit's last run on this machine."""
NONE_COLLECTED = 5
_COUNT = re.compile(r"(\d+) (\w+)")


@dataclass(slots=True, frozen=True)
class Unit:
    """What runs in one lane: ``paths`` below the repository."""

    name: str
    paths: tuple[str, ...]
    inside: bool = True


@dataclass(slots=True, frozen=True)
class Result:
    """What became of a unit."""

    unit: Unit
    status: int
    took_s: float
    processor_s: float
    said: str
    log: Path

    @property
    def failed(self) -> bool:
        return self.status not in (0, NONE_COLLECTED)

    def line(self) -> str:
        used = f"{self.took_s:6.1f} s {self.processor_s:6.1f} s of processor"
        words = f"{self.unit.name:24} {used}  {self.said}"
        if not self.failed:
            return words
        alone = f"python -m tests.lanes {' '.join(self.unit.paths)}"
        return f"{words}\n    log: {self.log}\n    alone: {alone}"


def units(folder: Path, wanted: Sequence[str]) -> list[Unit]:
    """Group the tests of ``folder``; with ``wanted`` only those paths, as they were given."""
    grouped = {name: [f"{FOLDER}/{name}"] for name in TOGETHER if (folder / name).is_dir()}
    for path in sorted(folder.glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        name = next((group for group in SMALL if name.startswith(group)), name)
        grouped.setdefault(name, []).append(f"{FOLDER}/{path.name}")
    chosen = {
        name: tuple(path for whole in paths for path in _within(whole, wanted or [whole]))
        for name, paths in grouped.items()
    }
    return [Unit(name, paths, name not in OUTSIDE) for name, paths in chosen.items() if paths]


def _within(whole: str, wanted: Sequence[str]) -> list[str]:
    """Return ``whole`` if it is wanted, else the wanted paths in it."""
    if any(_covers(path, whole) for path in wanted):
        return [whole]
    return [path for path in wanted if _covers(whole, path)]


def _covers(path: str, other: str) -> bool:
    """Whether ``other``, which may name a test of a module, lies in ``path``."""
    return Path(other.partition("::")[0]).is_relative_to(path)


def longest_first(found: Iterable[Unit], times: Mapping[str, float]) -> list[Unit]:
    """Order units by the last run's seconds; those never run are first."""
    return sorted(found, key=lambda unit: times.get(unit.name, float("inf")), reverse=True)


def total(said: Iterable[str]) -> str:
    """Add up summaries: ``3 passed`` and ``1 failed, 2 passed`` are ``5 passed, 1 failed``."""
    counts = Counter[str]()
    for text in said:
        counts.update({word: int(number) for number, word in _COUNT.findall(text)})
    return ", ".join(f"{number} {word}" for word, number in counts.most_common()) or "0 passed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument("-n", type=int, default=2, metavar="N", help="lanes at a time (2)")
    given, rest = parser.parse_known_args(arguments)
    wanted = [word for word in rest if (ROOT / word.partition("::")[0]).exists()]
    options = [word for word in rest if word not in wanted]
    found = units(ROOT / FOLDER, [word.rstrip("/") for word in wanted])
    if not found:
        parser.error(f"no tests below {FOLDER} are named {' '.join(wanted)}")
    _prepare()
    runner = _Runner(options)
    ordered = longest_first(found, _times())
    turns = [[unit] for unit in ordered if unit.inside]
    turns.insert(0, [unit for unit in ordered if not unit.inside])
    with ThreadPoolExecutor(max_workers=max(1, given.n)) as pool:
        results = [result for some in pool.map(runner.run, turns) for result in some]
    _keep(results, whole=not rest)
    failed = [result for result in results if result.failed]
    for result in failed:
        print(f"\nthe end of {result.log}:")
        lines = result.log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(gates.evidence(lines)))
    print()
    for result in sorted(results, key=lambda one: (one.failed, one.unit.name)):
        print(result.line())
    said = total(result.said for result in results)
    print(f"{len(results)} units, {len(failed)} failed")
    print(f"{said} in {time.monotonic() - runner.began:.2f}s")
    return 1 if failed else 0


def _prepare() -> None:
    """Make what lanes cannot fetch, and remove what killed runs left."""
    lanes.sweep()
    racks.prepare(slurm=True, images=image.BUILDERS)
    for recipe in (roce.RECIPE, storage.RECIPE):
        install(recipe)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)


def _times() -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(TIMES.read_text(encoding="utf-8")))
    return {}


def _keep(results: Sequence[Result], *, whole: bool) -> None:
    """Write what the gate, and after a whole run the next one, want to know of this one."""
    if whole:
        known = _times() | {result.unit.name: result.took_s for result in results}
        TIMES.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    figures = [
        {
            "unit": one.unit.name,
            "took_s": one.took_s,
            "processor_s": one.processor_s,
            "said": one.said,
        }
        for one in results
    ]
    (LOGS / gates.FIGURES).write_text(json.dumps(figures, indent=1), encoding="utf-8")


class _Runner:
    """Runs units; every method may run in several threads."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)
        self._lock = threading.Lock()
        self.began = time.monotonic()

    def run(self, units: Sequence[Unit]) -> list[Result]:
        """Run units where they belong, one after the other."""
        return [
            self._in_lane(unit) if unit.inside else self._run(unit, self._words(unit))
            for unit in units
        ]

    def _in_lane(self, unit: Unit) -> Result:
        """Run a unit in a lane of its own, which ends with this program at the latest."""
        name = f"test-{os.getpid()}-{unit.name.replace('_', '-')}"[:24].strip("-")
        lanes.create(name, owner=os.getpid())
        try:
            return self._run(unit, lanes.command(name, self._words(unit)), name)
        finally:
            lanes.end(name)

    def _words(self, unit: Unit) -> list[str]:
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
            "--durations",
            "10",
        ]
        return [*words, *self._options, *unit.paths]

    def _run(self, unit: Unit, words: Sequence[str], lane: str = "") -> Result:
        log = LOGS / f"{unit.name}.log"
        files = Path("/tmp") / f"ll-{os.getpid()}-{unit.name}"  # short: sockets lie below it
        files.mkdir()
        self._say(f"{unit.name} begins")
        began = time.monotonic()
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(files)}
        environment.pop(VARIABLE, None)
        with log.open("wb") as out:
            child = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=out, stderr=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.monotonic() - began
        processor_s = lanes.processor_s(lane) if lane else used.ru_utime + used.ru_stime
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = gates.summary(lines) or "ended without a summary"
        result = Result(unit, child.returncode, took_s, processor_s, said, log)
        self._say(result.line().splitlines()[0])
        shutil.rmtree(files, ignore_errors=True)
        return result

    def _say(self, line: str) -> None:
        with self._lock:
            print(f"[{time.monotonic() - self.began:5.0f} s] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

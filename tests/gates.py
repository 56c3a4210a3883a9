"""``python -m tests.gates GATE...``: runs targets of the Makefile and prints a line for each.

A line says what ran, for how long, how much processor time it took and what failed, with the
command that runs it alone. ``rack`` runs beside the others, one after the other, which then leave
it the processor: its tests have hardware's patience. All output is in LOGS, one file a gate; the
end of a failed gate's is printed too. Ends with 1 if a gate failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "out" / "tests"
"""The logs of the last run."""
FIGURES = "figures.json"
"""Seconds of every gate, and of every lane, in their folders of logs."""
RACK = "rack"
_NICE = 10
_SHOWN = 120
"""Lines that are printed of a failed gate."""
_NAMED = 20
"""Failed tests that are printed of a gate."""
_SUMMARY = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|errors?|skipped|deselected)\b.*) in [\d.]+s")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$")


@dataclass(slots=True, frozen=True)
class Result:
    """What became of a gate; ``said`` is the tests' own summary, ``failed`` names tests."""

    gate: str
    status: int
    took_s: float
    processor_s: float
    said: str
    failed: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """One line, and after a failure what failed, where its log is and how to run it alone."""
        taken = f"{self.took_s:6.1f} s {self.processor_s:7.1f} s of processor"
        yield f"{self.gate:9} {'failed' if self.status else 'ok':6} {taken}  {self.said}".rstrip()
        if not self.status:
            return
        yield from (f"    {name}" for name in self.failed[:_NAMED])
        if len(self.failed) > _NAMED:
            yield f"    and {len(self.failed) - _NAMED} more"
        yield f"    log: {log_of(self.gate)}"
        yield f"    alone: {again(self.gate, self.failed)}"


def again(gate: str, failed: Sequence[str]) -> str:
    """Return the command that runs a gate again; only its failed tests if they are few."""
    few = 0 < len(failed) <= _NAMED
    return f"make {gate} T={quoted(' '.join(failed))}" if few else f"make {gate}"


def quoted(words: str) -> str:
    """Return ``words`` as one word of the shell within make."""
    plain = re.fullmatch(r"[\w./:,=-]+", words)
    return words if plain else "'" + words.replace("'", "'\\''").replace("$", "$$") + "'"


def log_of(gate: str) -> Path:
    """Return the file with a gate's output."""
    return LOGS / f"{gate}.log"


def summary(lines: Iterable[str]) -> str:
    """Return pytest's last summary (``3 passed, 1 failed``), empty without one."""
    found = [match[1] for line in lines if (match := _SUMMARY.match(line))]
    return found[-1] if found else ""


def failures(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the tests that pytest's summary names as failed, each once."""
    found = (match[1] for line in lines if (match := _FAILED.match(line.rstrip())))
    return tuple(dict.fromkeys(found))


def evidence(lines: Sequence[str]) -> Sequence[str]:
    """Return the end of a failed gate's output."""
    return lines[-_SHOWN:]


class _Runner:
    """Runs gates; prints from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: set[int] = set()
        self._stopped = False

    def run(self, gate: str, *, nice: int) -> Result:
        """Run a gate to its end and print its line."""
        began = time.monotonic()
        status, processor_s = self._make(gate, nice)
        took_s = time.monotonic() - began
        lines = log_of(gate).read_text(encoding="utf-8", errors="replace").splitlines()
        if gate == RACK:
            processor_s = _in_lanes()  # what this process sees is a part of it
        result = Result(gate, status, took_s, processor_s, summary(lines), failures(lines))
        with self._lock:
            print("\n".join(result.lines()), flush=True)
        return result

    def _make(self, gate: str, nice: int) -> tuple[int, float]:
        """Return the exit code and the processor time of all its processes, in seconds."""
        words = ["nice", "-n", str(nice), "make", "--no-print-directory", gate]
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}
        with log_of(gate).open("wb") as out, self._lock:
            if self._stopped:
                return 1, 0.0
            child = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=out, stderr=out)
            self._children.add(child.pid)
        _, status, used = os.wait4(child.pid, 0)
        self._children.discard(child.pid)
        child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode, used.ru_utime + used.ru_stime

    def stop(self) -> None:
        """End what runs, as Ctrl-C does, and start nothing more."""
        with self._lock:
            self._stopped = True
        for pid in tuple(self._children):
            os.kill(pid, signal.SIGTERM)


def _in_lanes() -> float:
    """Return the processor time of all lanes of the last run, in seconds."""
    file = LOGS / RACK / FIGURES
    if not file.exists():
        return 0.0
    return sum(lane["processor_s"] for lane in json.loads(file.read_text(encoding="utf-8")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gates and print their lines; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gates", description=__doc__)
    parser.add_argument("gates", nargs="+", metavar="GATE")
    gates = parser.parse_args(arguments).gates
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    runner, results = _Runner(), list[Result]()
    began = time.monotonic()

    def one_by_one(names: Sequence[str], nice: int) -> None:
        results.extend(runner.run(name, nice=nice) for name in names)

    beside = [name for name in gates if name == RACK]
    rest = [name for name in gates if name != RACK]
    lanes = threading.Thread(target=one_by_one, args=(beside, 0))
    lanes.start()
    try:
        one_by_one(rest, _NICE if beside else 0)
        lanes.join()
    except BaseException:
        runner.stop()
        raise
    took_s = time.monotonic() - began
    used_s = sum(result.processor_s for result in results)
    figures = json.dumps([asdict(result) for result in results], indent=1)
    (LOGS / FIGURES).write_text(figures, encoding="utf-8")
    failed = [result for result in results if result.status]
    for result in failed:
        lines = log_of(result.gate).read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"\nthe end of {log_of(result.gate)}:")
        print("\n".join(evidence(lines)))
    names = ", ".join(result.gate for result in failed)
    said = f"failed: {names}; logs are in {LOGS}" if failed else "all passed"
    print(f"{len(results)} gates in {took_s:.0f} s, {used_s:.0f} s of processor, {said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

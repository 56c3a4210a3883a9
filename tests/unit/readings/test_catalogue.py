"""The catalogue: what it declares is sound, and what else names readings agrees with it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from controller.telemetry.history import COLUMNS, GPU_COLUMNS
from protos import agent_pb2 as pb
from readings.catalogue import CATALOGUE
from readings.reading import Object, Reading, Unit

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "console" / "deploy" / "prometheus" / "lightloom.rules.yml"
DASHBOARD = ROOT / "console" / "deploy" / "grafana" / "lightloom.json"
FIRST = (
    *("utilisation", "memory_total_bytes", "temperature_c", "power_w", "sm_clock_hz"),
    *("memory_clock_hz", "pcie_rx_bps", "pcie_tx_bps", "pcie_replays", "nvlinks_up"),
    *("ecc_corrected", "ecc_uncorrected", "xid", "throttle_reasons", "memory_bytes"),
)
"""Readings of the first catalogue, by their numbers from 1 on."""
GPU_METRICS = {
    "lightloom_gpu_utilization_ratio": "Busy fraction of an endpoint",
    "lightloom_gpu_memory_used_bytes": "Memory in use on an endpoint",
    "lightloom_gpu_throttled": "1 when the clocks are held down",
    "lightloom_gpu_ecc_errors": "Memory errors since the driver was loaded",
    "lightloom_gpu_temperature_celsius": "Temperature of the GPU",
    "lightloom_gpu_power_watts": "What the GPU draws",
    "lightloom_gpu_memory_size_bytes": "Memory the GPU has",
    "lightloom_gpu_sm_clock_hertz": "Clock of the streaming multiprocessors",
}


def named(name: str) -> Reading:
    (found,) = (reading for reading in CATALOGUE if reading.name == name)
    return found


def test_numbers_on_the_wire_are_those_of_the_first_release_and_used_once() -> None:
    numbers = {reading.id: reading.name for reading in CATALOGUE}
    assert len(numbers) == len(CATALOGUE)
    assert tuple(numbers[number + 1] for number in range(len(FIRST))) == FIRST


def test_an_object_has_a_name_once() -> None:
    of_containers = [r.name for r in CATALOGUE if r.of in (Object.RANK, Object.GPU)]
    assert len(set(of_containers)) == len(of_containers)
    others = {(r.of, r.name) for r in CATALOGUE}
    assert len(others) == len(CATALOGUE)
    own = {"job", "rank", "endpoint", "source", "gpu", "readings"}  # of a sample
    assert not own & set(of_containers)


def test_the_fields_of_older_agents_are_all_in_the_catalogue() -> None:
    names = {reading.name for reading in CATALOGUE}
    assert {field.name for field in pb.Gpu.DESCRIPTOR.fields} <= names


def test_the_history_has_the_columns_of_the_first_release() -> None:
    assert COLUMNS == ("rx_bps", "tx_bps", "utilisation")
    assert GPU_COLUMNS[:3] == ("temperature_c", "power_w", "memory_bytes")
    kept = [reading for reading in CATALOGUE if reading.history]
    assert all(r.of in (Object.RANK, Object.GPU) and r.unit is not Unit.WORDS for r in kept)


def test_metrics_of_gpus_are_called_as_ever() -> None:
    found = {r.metric: r.help for r in CATALOGUE if r.metric and r.of in (Object.RANK, Object.GPU)}
    assert found.items() >= GPU_METRICS.items()


def test_readings_of_one_family_fit_together() -> None:
    for reading in CATALOGUE:
        family = [other for other in CATALOGUE if other.metric == reading.metric != ""]
        shapes = {(o.of, o.help, o.counter, tuple(key for key, _ in o.labels)) for o in family}
        assert len(shapes) <= 1, reading
        assert len({o.labels for o in family}) == len(family), reading
        assert not reading.column or reading.label, reading  # the console's column has its label


@pytest.mark.parametrize("path", [PROMETHEUS, DASHBOARD], ids=lambda path: path.name)
def test_alerts_and_the_dashboard_name_metrics_of_gpus_that_there_are(path: Path) -> None:
    known = {r.metric + ("_total" if r.counter else "") for r in CATALOGUE}
    named_there = set(re.findall(r"\blightloom_gpu_\w+", path.read_text(encoding="utf-8")))
    assert named_there
    assert named_there <= known


def test_the_page_lists_every_reading() -> None:
    rows = []
    for r in CATALOGUE:
        labels = "".join(f'{{{name}="{word}"}}' for name, word in r.labels)
        metric = f"`{r.metric}{'_total' * r.counter}{labels}`" if r.metric else ""
        kept = f"`{r.history}-*.ring`" if r.history else ""
        cells = (f"`{r.name}`", r.of, r.unit, metric, kept)
        rows.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    part = page.split("\n## Readings\n")[1].split("\n## ")[0]
    assert [line for line in part.splitlines() if line.startswith("| `")] == rows


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_figure_counts_as_not_reported(value: float) -> None:
    of_numbers = [reading for reading in CATALOGUE if reading.unit is not Unit.WORDS]
    assert [reading.accept(value) for reading in of_numbers] == [None] * len(of_numbers)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("utilisation", -1.0, 0.0),
        ("utilisation", 1e300, 1.0),
        ("temperature_c", -40.0, -40.0),
        ("temperature_c", 1e300, 1e300),
        ("sm_clock_hz", -1.0, None),
        ("sm_clock_hz", 2.0**63, 2**63),
        ("sm_clock_hz", 2.0**64, None),
        ("xid", 2.0**32, None),
        ("xid", 79.0, 79),
        ("load", -0.5, None),
    ],
)
def test_bounds(name: str, value: float, kept: float | None) -> None:
    assert named(name).accept(value) == kept


def test_words_are_cut() -> None:
    found = named("throttle_reasons").accept(["x" * 10_000] * 1_000)
    assert found == ("x" * 64,) * 32

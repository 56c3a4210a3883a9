"""What a measurement of the input may be asked for, and its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from measure.envelope import Json, Row
from measure.given import RequestSettings
from measure.kinds import (
    PROBE_ENV,
    PROBE_IMAGE,
    TORCH_IMAGE,
    MeasuredEndpoint,
    MeasuredSite,
    Run,
    SettingsError,
)
from measure.loading.verdict import REACHED
from measure.storage import plan as storage

LOADERS = ("builtin", "torch", "tf")
NAMES = (
    *("volume", "data", "sample", "per_file", "loader", "batch", "workers", "prefetch", "deeper"),
    *("decode_ms", "decode", "step_ms", "cache", "seconds", "blocks", "ranks"),
    *("io_limits", "memory_limits", "image"),
)
BLOCK = 4096
"""Direct I/O reads multiples of a device's block: samples are rounded up to it."""
PHASES = 3
START_S = 3.0
"""Time of one phase besides what it measures: starting workers, filling the pipeline."""
FRAMEWORK_S = 60.0
"""Importing a framework."""


def settings(given: Mapping[str, Json]) -> dict[str, Json]:
    """Return all settings with their defaults. Raises SettingsError."""
    asked = RequestSettings(given)
    asked.only(NAMES)
    volume = asked.text("volume", storage.VOLUME, "the name of a volume")
    if not volume:
        raise SettingsError(
            "volume", "it is required", "set volume=NAME; lightloom get volumes lists them"
        )
    prefetch = asked.integer("prefetch", 2, 0, 1024)
    checked = {
        "volume": volume,
        "data": asked.size("data", 2**28, 2**20, 2**44),
        "sample": -(-asked.size("sample", 2**17, 1, 2**30) // BLOCK) * BLOCK,
        "per_file": asked.integer("per_file", 64, 1, 2**20),
        "loader": asked.choice("loader", "builtin", LOADERS),
        "batch": asked.integer("batch", 32, 1, 2**20),
        "workers": asked.integer("workers", 4, 1, 256),
        "prefetch": prefetch,
        "deeper": asked.integer("deeper", max(4 * prefetch, 8), 1, 4096),
        "decode_ms": asked.number("decode_ms", 5.0, 0.0, 60000.0),
        "decode": asked.choice("decode", "sleep", ("sleep", "busy")),
        "step_ms": asked.number("step_ms", 100.0, 0.1, 600000.0),
        "cache": asked.choice("cache", "bypass", ("bypass", "use")),
        "seconds": asked.number("seconds", 3.0, 0.2, 3600.0),
        "blocks": asked.integer("blocks", 5, 1, 100),
        "ranks": asked.integer("ranks", 1, 1, 1024),
        **storage.limits(asked),
        "image": asked.text("image", storage.IMAGE, "the name of an image"),
    }
    if checked["batch"] * checked["sample"] > checked["data"]:
        raise SettingsError(
            "data",
            f"{checked['data']} bytes are less than one batch",
            f"set data={checked['batch'] * checked['sample']} or more",
        )
    return checked


def places(settings: Row, fabric: MeasuredSite) -> list[MeasuredEndpoint]:
    """Return the endpoints of a run, in rank order. Raises SettingsError."""
    found = list(fabric.places)[: settings["ranks"]]
    if len(found) < settings["ranks"]:
        raise SettingsError(
            "ranks", f"{settings['ranks']} are asked for, {len(found)} endpoints are idle"
        )
    return found


def runs(settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
    """Return a run per limit. Raises SettingsError."""
    chosen = places(settings, fabric)
    found = []
    for arm in storage.arms(settings):
        make = len(chosen) * settings["data"] / min(arm.io_bps or 20e6, 20e6)
        phases = (PHASES + 1) * settings["blocks"]
        timeout = make + phases * (3 * settings["seconds"] + START_S) + FRAMEWORK_S
        timeout += storage.MARGIN_S
        if timeout > storage.MOST_S:
            raise SettingsError(
                "seconds", f"a run may last {timeout / 3600:.1f} h", "set fewer blocks or data"
            )
        found.append(
            Run(
                command=("python3", "-m", "probe.loading", _plan(settings, seed)),
                endpoints=tuple(place.endpoint for place in chosen),
                label=arm.label,
                image=settings["image"] or _image(settings["loader"]),
                env=PROBE_ENV,
                memory_bytes=arm.memory_bytes,
                io_bps=arm.io_bps,
                volumes=((settings["volume"], storage.DIRECTORY, False),),
                timeout_s=timeout,
            )
        )
    return found


def _image(loader: str) -> str:
    """Return the image that has the loader's framework; the controller's default has TensorFlow."""
    return {"torch": TORCH_IMAGE, "builtin": PROBE_IMAGE}.get(loader, "")


def _plan(settings: Row, seed: int) -> str:
    fields = {
        "directory": storage.DIRECTORY,
        **{name: settings[name] for name in ("loader", "per_file", "batch", "workers")},
        **{name: settings[name] for name in ("prefetch", "deeper", "seconds", "blocks")},
        "data_bytes": settings["data"],
        "sample_bytes": settings["sample"],
        "decode_s": settings["decode_ms"] / 1e3,
        "busy": settings["decode"] == "busy",
        "step_s": settings["step_ms"] / 1e3,
        "direct": settings["cache"] == "bypass",
        "enough": REACHED,
        "seed": seed,
    }
    return json.dumps(fields, separators=(",", ":"))

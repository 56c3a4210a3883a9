"""``submit -f``: a job file, with what the command line says over it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from console.cli.ask.files import reading
from console.cli.errors import usage

Document = dict[str, Any]

FileOption = Annotated[
    Path | None,
    typer.Option("-f", "--file", metavar="FILE", help="A job file; options here go over it."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the request (-o yaml|json) and send nothing.")
]


CpuLimitOption = Annotated[
    float | None,
    typer.Option("--cpu-limit", metavar="CORES", help="Cores that one container may use."),
]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Its memory beside its GPU's: 32GiB."),
]
IoLimitOption = Annotated[
    str | None,
    typer.Option(
        "--io-limit", metavar="RATE", help="What it may read, and write, a second of a disk: 500MB."
    ),
]
_LIMITS = {"cpu": "--cpu-limit", "memory": "--memory-limit", "io": "--io-limit"}
_FIXES = {"cpu": "for example 4 or 0.5", "memory": "for example 32GiB", "io": "for example 500MB/s"}


def limits(**given: float | str | None) -> Document:
    """Return what one container may use (``cpu``, ``memory``, ``io``), as the request says it.

    Written as in a job file. CliError with exit code 2 for what is no figure.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return {}
    from pydantic import ValidationError  # noqa: PLC0415 - start-up time

    from sitefile.jobfile import LimitsModel  # noqa: PLC0415 - start-up time

    try:
        model = LimitsModel.model_validate(said)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise usage(f"{_LIMITS[name]} {said[name]} is no limit", _FIXES[name]) from None
    return {"cpu": model.cpu, "memory_bytes": model.memory, "io_bps": model.io}


def merged(path: Path | None, given: Document) -> Document:
    """Return the request: the file's, and over it what the command line says.

    Variables go over the file's one by one, everything else as a whole. CliError with exit
    code 2 for a file that can not be used, or when nobody says how many GPUs.
    """
    said: Document = {}
    if path is not None:
        with reading(path):
            from sitefile import load_job  # noqa: PLC0415 - start-up time

            said = load_job(path)
    env = {**said.get("env", {}), **given.get("env", {})}
    request = {**said, **given, **({"env": env} if env else {})}
    if "count" not in request:
        fix = "give -n N" if path is None else f"give -n N, or resources.gpus in {path}"
        raise usage("how many GPUs is not said", fix)
    return request

"""``submit -f``: a job file; the command line overrides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from console.cli.ask.checkpoint import checkpoint
from console.cli.ask.files import reading
from console.cli.errors import usage

Document = dict[str, Any]

FileOption = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="A job file, of one job or of several in YAML documents; options override it.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the request (-o yaml|json) and send nothing.")
]
_MODES: Mapping[str, Document] = {
    "": {},
    "ro": {"read_only": True},
    "rw": {"read_only": False},
}
_LIMITS = {"cpu": "--cpu-limit", "memory": "--memory-limit", "io": "--io-limit"}
_FIXES = {"cpu": "for example 4 or 0.5", "memory": "for example 32GiB", "io": "for example 500MB/s"}


def limits(**given: float | str | None) -> Document:
    """Return one container's limits (``cpu``, ``memory``, ``io``) as fields of the request.

    They are written as in a job file. CliError with exit code 2 for an invalid one.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return {}
    from pydantic import ValidationError  # noqa: PLC0415 - start-up time

    from controller.schema.submit.file import LimitsModel  # noqa: PLC0415 - start-up time

    try:
        model = LimitsModel.model_validate(said)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise usage(f"{_LIMITS[name]} {said[name]} is not a limit", _FIXES[name]) from None
    return {"cpu": model.cpu, "memory_bytes": model.memory, "io_bps": model.io}


def mounts(texts: Iterable[str]) -> list[Document]:
    """Read ``--volume``: ``NAME:PATH``, with ``:ro`` or ``:rw``. CliError with exit code 2."""
    found = []
    for text in texts:
        volume, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not volume or not path or mode not in _MODES or text.endswith(":"):
            raise usage(f"--volume {text!r} is not NAME:PATH[:ro]", "for example imagenet:/data")
        found.append({"volume": volume, "path": path, **_MODES[mode]})
    return found


def merged(path: Path | None, given: Document) -> Document:
    """Return the request of the file's only job, as ``all_merged``. CliError."""
    if path is None:
        return _merged({}, given, None)
    with reading(path):
        from controller.schema.submit.file import load_job  # noqa: PLC0415 - start-up time

        said = load_job(path)
    return _merged(said, given, path)


def all_merged(path: Path | None, given: Document) -> list[Document]:
    """Return the requests: the file's fields, overridden by those of the command line.

    Environment variables override the file's one by one, checkpoints part by part, every other
    field as a whole. CliError
    with exit code 2 for a file that cannot be used, or when the number of GPUs is missing.
    """
    if path is None:
        return [_merged({}, given, None)]
    with reading(path):
        from controller.schema.submit.file import load_jobs  # noqa: PLC0415 - start-up time

        said = load_jobs(path)
    if len(said) > 1 and "name" in given:
        raise usage(f"{path} has {len(said)} jobs, --name would name all of them", "leave it out")
    return [_merged(job, given, path) for job in said]


def _merged(said: Document, given: Document, path: Path | None) -> Document:
    env = {**said.get("env", {}), **given.get("env", {})}
    request = {**said, **given, **({"env": env} if env else {})}
    if "checkpoint" in request:
        request["checkpoint"] = checkpoint(said.get("checkpoint"), given.get("checkpoint"))
    if "count" not in request:
        fix = "give -n N" if path is None else f"give -n N, or resources.gpus in {path}"
        raise usage("the number of GPUs is missing", fix)
    return request

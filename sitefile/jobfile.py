"""Job files: what to run, on what, and how a regroup may treat it, in YAML.

Reads a file into the body of the REST request, so that a file asks for nothing that the command
line could not ask for. What the controller does not know it refuses by name; nothing is left out
in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from sitefile.errors import SiteFileError
from sitefile.load import problems_of
from sitefile.yaml_io import load_mapping

SCHEMA_COMMAND = "lightloom schema job"
MAX_BYTES = 256 * 1024
"""Four times the longest command an agent takes; more is no job file."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,63}$")]
JobName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?$")]
"""What agents take for a container's name."""
Word = Annotated[str, StringConstraints(min_length=1, max_length=32768)]


def _rate(value: object) -> object:
    """``500MB/s`` is ``500MB``: a rate is written with or without its second."""
    return value.removesuffix("/s") if isinstance(value, str) else value


def _no_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no figures")
    return value


def _text(value: object) -> object:
    """YAML reads ``SEED: 7`` as a number, and means the text; a flag or fraction may be mangled."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        raise ValueError("quote it, so that it arrives as it is written")
    return value


Bytes = Annotated[ByteSize, BeforeValidator(_no_flag), Field(gt=0)]
BytesPerSecond = Annotated[ByteSize, BeforeValidator(_rate), BeforeValidator(_no_flag), Field(gt=0)]
Value = Annotated[str, BeforeValidator(_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ResourcesModel(_Strict):
    """What the job runs on: one container a GPU."""

    gpus: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="how many; -n on the command line goes over it"
    )
    kind: Literal["gpu"] = "gpu"
    model: str | None = Field(None, description="only GPUs of this model")
    memory: Bytes | None = Field(None, description="memory of each GPU at least, as 12GiB")
    endpoints: list[Name] = Field(default=[], description="exactly these")


class LimitsModel(_Strict):
    """What one container may use of its server."""

    cpu: Annotated[float, BeforeValidator(_no_flag), Field(gt=0)] | None = Field(
        None, description="cores"
    )
    memory: Bytes | None = Field(None, description="as 32GiB")
    io: BytesPerSecond | None = Field(None, description="of each block device, as 500MB/s")


class JobFileModel(_Strict):
    """A job."""

    apiVersion: Literal["lightloom/v1"] = "lightloom/v1"  # noqa: N815 - the word operators know
    kind: Literal["Job"] = "Job"
    name: JobName | None = None
    project: Name | None = None
    priority: Annotated[int, Field(ge=-100, le=100, strict=True)] | None = None
    resources: ResourcesModel = ResourcesModel()
    image: str | None = Field(None, description="the controller's default if absent")
    pull: Literal["never", "missing", "always"] | None = Field(
        None, description="when servers fetch the image from its registry"
    )
    setup: str | None = Field(None, description="shell lines before run, in every container")
    run: str | list[Word] | None = Field(
        None,
        description="shell lines, or a command as a list of words; the image's own if absent",
    )
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,63}$")], Value] = {}
    limits: LimitsModel = LimitsModel()
    locality: Literal["strict", "preferred", "any", "regroup"] | None = None
    policy: Literal["live", "pause", "restart"] | None = Field(
        None, description="what a regroup does to the job"
    )
    rank_order: Literal["aggregator", "placed"] | None = None
    pinned: bool | None = Field(None, strict=True, description="its light is never moved")
    restart: (
        Annotated[str, StringConstraints(pattern=r"^(never|on-failure(:[1-9][0-9]{0,2})?)$")] | None
    ) = Field(None, description="when a rank dies: never, on-failure, on-failure:N")
    dark_tolerance_s: Annotated[float, BeforeValidator(_no_flag), Field(gt=0, le=86400)] | None = (
        Field(None, description="how long its network may be dark while it runs")
    )
    checkpoint_grace_s: Annotated[float, BeforeValidator(_no_flag), Field(gt=0, le=300)] | None = (
        Field(None, description="with policy restart: after SIGTERM all end with 0 in this time")
    )
    time_limit_s: Annotated[float, BeforeValidator(_no_flag), Field(gt=0)] | None = Field(
        None, description="expected run time at most"
    )


def load_job(path: str | Path) -> dict[str, Any]:
    """Read a job file as the body of a REST request; SiteFileError lists every problem."""
    file = Path(path)
    document = load_mapping(file, max_bytes=MAX_BYTES, schema=SCHEMA_COMMAND)
    try:
        model = JobFileModel.model_validate(document)
    except ValidationError as error:
        raise SiteFileError(str(file), problems_of(error, schema=SCHEMA_COMMAND)) from error
    return request(model)


def request(job: JobFileModel) -> dict[str, Any]:
    """Return the REST request of a job; what the file does not say is absent."""
    resources, limits = job.resources, job.limits
    said = {
        "name": job.name,
        "project": job.project,
        "priority": job.priority,
        "count": resources.gpus,
        "model": resources.model,
        "min_memory_bytes": resources.memory,
        "endpoints": resources.endpoints or None,
        "image": job.image,
        "pull": job.pull,
        "command": command(job.setup, job.run) or None,
        "env": job.env or None,
        "cpu": limits.cpu,
        "memory_bytes": limits.memory,
        "io_bps": limits.io,
        "locality": job.locality,
        "policy": job.policy,
        "rank_order": job.rank_order,
        "pinned": job.pinned,
        "restart": job.restart,
        "dark_tolerance_s": job.dark_tolerance_s,
        "checkpoint_grace_s": job.checkpoint_grace_s,
        "time_limit_s": job.time_limit_s,
    }
    return {key: value for key, value in said.items() if value is not None}


def command(setup: str | None, run: str | list[str] | None) -> list[str]:
    """Return what each container runs; empty is the image's own command.

    A list runs as it is, without a shell, when there is no setup. Shell lines stop at the first
    that fails.
    """
    if isinstance(run, list):
        if not setup:
            return run
        return ["/bin/sh", "-ec", f'{setup}\nexec "$@"', "sh", *run]
    lines = "\n".join(part for part in (setup, run) if part)
    return ["/bin/sh", "-ec", lines] if lines else []


def job_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the job file, for editors and checkers."""
    schema = JobFileModel.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

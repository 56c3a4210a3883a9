"""Reads job files (YAML): what to run, on which resources, and how a regroup treats the job.

The result is the body of the REST request, so a file can request only what the command line
can request. Unknown keys are refused by name; nothing is dropped silently.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)

from scheduler.model import Locality, Policy, RankOrder, TimeLimitAction
from sitefile import names
from sitefile.errors import SiteFileError
from sitefile.load import problems_of
from sitefile.quantities import NUMBER, Bytes, BytesPerSecond, off_word
from sitefile.words import exact_text
from sitefile.yaml_io import load_mapping, load_mappings

SCHEMA_COMMAND = "lightloom schema job"
MAX_BYTES = 256 * 1024
"""Limit of a job file: four times the longest command that an agent accepts."""
MAX_JOBS, MAX_JOBS_BYTES = 1000, 4 * 2**20
"""Limits of a file with several jobs, as of one request."""

Name = Annotated[str, StringConstraints(pattern=f"^{names.NAME}$")]
JobName = Annotated[str, StringConstraints(pattern=f"^{names.JOB}$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=32768)]


def _text(value: object) -> object:
    """Return the text of ``SEED: 7`` or ``UMASK: 0022``; refuse values that YAML may alter."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | float):
        raise ValueError("quote it to keep its exact text")
    return exact_text(value)


Value = Annotated[str, BeforeValidator(_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_enum_values=True, allow_inf_nan=False
    )


class SecretModel(_Strict):
    """A variable whose value is a secret of the project."""

    secret: Annotated[str, StringConstraints(pattern=f"^{names.SECRET_NAME}$")]


Variable = Annotated[
    Annotated[str, Tag("text")] | Annotated[SecretModel, Tag("secret")],
    Discriminator(lambda value: "secret" if isinstance(value, dict | SecretModel) else "text"),
    BeforeValidator(_text),
]
"""A variable's value: its text, or ``{secret: NAME}``."""


class ResourcesModel(_Strict):
    """The resources of the job: one container per GPU."""

    gpus: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="number of GPUs; -n on the command line overrides it"
    )
    kind: Literal["gpu"] = "gpu"
    model: str | None = Field(None, description="only GPUs of this model")
    memory: Bytes | None = Field(None, description="minimum memory of each GPU, such as 12GiB")
    endpoints: list[Name] = Field(default=[], description="exactly these endpoints")


class LimitsModel(_Strict):
    """Limits of one container on its server."""

    cpu: Annotated[float, Field(gt=0), NUMBER] | None = Field(None, description="cores")
    memory: Bytes | None = Field(None, description="memory limit, such as 32GiB")
    io: BytesPerSecond | None = Field(
        None, description="I/O rate of each block device, such as 500MB/s"
    )


class VolumeModel(_Strict):
    """A volume of the site in every container of the job."""

    volume: Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")] = Field(
        description="its name in the site file"
    )
    path: Word = Field(description="where it appears in the container, such as /data")
    read_only: bool | None = Field(
        None, strict=True, description="default: as the site file offers it"
    )


class LocalModel(_Strict):
    """Where a rank's checkpoints are on its server."""

    where: Literal["memory", "disk"] | None = Field(None, description="default: memory")
    size: Bytes = Field(
        description="of one rank, such as 8GiB: `keep` steps and one that is being written"
    )
    keep: Annotated[int, Field(ge=1, le=8, strict=True)] | None = Field(
        None, description="complete steps that are kept; default: 2"
    )


class CopiesModel(_Strict):
    """How a rank's part survives the loss of its server."""

    scheme: Literal["single", "partner", "xor"] | None = Field(
        None, description="default: partner, and single for a job of one rank"
    )
    apart: Literal["server", "aggregator"] | None = Field(
        None, description="what a part and its copy must not share; default: server"
    )
    set: Annotated[int, Field(ge=2, le=16, strict=True)] | None = Field(
        None, description="with xor: least number of ranks in a set; default: 4"
    )


class SharedModel(_Strict):
    """A store that gets every n-th complete step."""

    store: Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")] = Field(
        description="a volume of the site"
    )
    every: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = Field(
        None, description="default: 10"
    )


class CheckpointModel(_Strict):
    """How the job's checkpoints are found whole, kept and copied."""

    complete: (
        Annotated[
            str, StringConstraints(pattern=r"^(rename|dcp|orbax|keras|marker: ?[^/\s]{1,64})$")
        ]
        | None
    ) = Field(
        None,
        description="what is whole: rename, dcp, orbax, keras or 'marker: FILE'; default: rename",
    )
    local: LocalModel
    copies: CopiesModel | None = None
    shared: SharedModel | None = None
    replicas: Literal["distinct", "identical"] | None = Field(
        None, description="identical: any rank's part is the whole state; default: distinct"
    )


class JobFileModel(_Strict):
    """A job."""

    apiVersion: Literal["lightloom/v1"] = "lightloom/v1"  # noqa: N815 - the usual key in YAML files
    kind: Literal["Job"] = "Job"
    name: JobName | None = None
    project: Name | None = None
    priority: Annotated[int, Field(ge=-100, le=100, strict=True)] | None = None
    resources: ResourcesModel = ResourcesModel()
    image: str | None = Field(None, description="default: the controller's default image")
    pull: Literal["never", "missing", "always"] | None = Field(
        None, description="when servers pull the image from its registry"
    )
    setup: str | None = Field(
        None, description="shell lines that run before `run`, in every container"
    )
    run: str | list[Word] | None = Field(
        None,
        description="shell lines, or a command as a list of words; default: the image's command",
    )
    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,63}$")], Variable] = {}
    limits: LimitsModel = LimitsModel()
    volumes: list[VolumeModel] = Field([], max_length=16, description="what survives the job")
    record: Annotated[names.Recording | None, BeforeValidator(off_word)] = Field(
        None, description="how much of its communication is recorded; default: the site's"
    )
    locality: Locality | None = None
    policy: Policy | None = Field(None, description="how a regroup treats the job")
    rank_order: RankOrder | None = None
    pinned: bool | None = Field(None, strict=True, description="its circuits never move")
    restart: (
        Annotated[str, StringConstraints(pattern=r"^(never|on-failure(:[1-9][0-9]{0,2})?)$")] | None
    ) = Field(None, description="restart policy when a rank dies: never, on-failure, on-failure:N")
    dark_tolerance_s: Annotated[float, Field(gt=0, le=86400), NUMBER] | None = Field(
        None, description="longest dark time of its network while it runs"
    )
    checkpoint_grace_s: Annotated[float, Field(gt=0, le=300), NUMBER] | None = Field(
        None, description="with policy restart: all ranks exit 0 within this time after SIGTERM"
    )
    checkpoint: CheckpointModel | None = Field(
        None, description="keep its checkpoints, so that it goes on when a rank dies"
    )
    spares: (
        Annotated[int, Field(ge=0, le=64, strict=True)]
        | Annotated[str, StringConstraints(pattern=r"^(6[0-4]|[1-5]?[0-9])\?$")]
        | None
    ) = Field(None, description="idle GPUs reserved for it; '1?' takes one only if there is one")
    on_loss: Literal["wait", "shrink"] | None = Field(
        None, description="without a spare: wait for as many GPUs as before, or go on with fewer"
    )
    at_least: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = Field(
        None, description="ranks below which it does not shrink; default: 1"
    )
    time_limit_s: Annotated[float, Field(gt=0), NUMBER] | None = Field(
        None, description="maximum expected run time"
    )
    time_limit_action: TimeLimitAction | None = Field(
        None, description="at its time limit: end it, or ignore the limit; default: the site's"
    )


def load_job(path: str | Path) -> dict[str, Any]:
    """Read a job file as the body of a REST request; SiteFileError lists every problem."""
    file = Path(path)
    return _load(file, load_mapping(file, max_bytes=MAX_BYTES, schema=SCHEMA_COMMAND))


def load_jobs(path: str | Path) -> list[dict[str, Any]]:
    """Read a file with one job in each YAML document, as ``load_job``."""
    file = Path(path)
    documents = load_mappings(file, most=MAX_JOBS, max_bytes=MAX_JOBS_BYTES, schema=SCHEMA_COMMAND)
    return [
        _load(file, document, f"document {number}" if len(documents) > 1 else "")
        for number, document in enumerate(documents, 1)
    ]


def _load(file: Path, document: dict[str, Any], which: str = "") -> dict[str, Any]:
    try:
        model = JobFileModel.model_validate(document)
    except ValidationError as error:
        problems = [
            replace(p, path=", ".join(filter(None, (which, p.path))))
            for p in problems_of(error, JobFileModel, schema=SCHEMA_COMMAND)
        ]
        raise SiteFileError(str(file), problems) from error
    return request(model)


def request(job: JobFileModel) -> dict[str, Any]:
    """Return the REST request of a job; keys missing in the file are absent."""
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
        "env": {
            name: value.model_dump() if isinstance(value, SecretModel) else value
            for name, value in job.env.items()
        }
        or None,
        "cpu": limits.cpu,
        "memory_bytes": limits.memory,
        "io_bps": limits.io,
        "volumes": [v.model_dump(exclude_none=True) for v in job.volumes] or None,
        "record": job.record,
        "locality": job.locality,
        "policy": job.policy,
        "rank_order": job.rank_order,
        "pinned": job.pinned,
        "restart": job.restart,
        "dark_tolerance_s": job.dark_tolerance_s,
        "checkpoint_grace_s": job.checkpoint_grace_s,
        "checkpoint": _checkpoint(job.checkpoint) if job.checkpoint else None,
        **spares(job.spares),
        "on_loss": job.on_loss,
        "at_least": job.at_least,
        "time_limit_s": job.time_limit_s,
        "time_limit_action": job.time_limit_action,
    }
    return {key: value for key, value in said.items() if value is not None}


def _checkpoint(model: CheckpointModel) -> dict[str, Any]:
    said = model.model_dump(exclude_none=True)
    said["local"]["size_bytes"] = said["local"].pop("size")
    if "set" in (copies := said.get("copies", {})):
        copies["set_size"] = copies.pop("set")
    return said


def spares(asked: int | str | None) -> dict[str, Any]:
    """Return the fields of the request for ``1``, or ``1?`` for those that there are."""
    if asked is None:
        return {}
    text = str(asked)
    return {"spares": int(text.removesuffix("?")), "spares_needed": not text.endswith("?")}


def command(setup: str | None, run: str | list[str] | None) -> list[str]:
    """Return the command of each container; an empty list means the image's own command.

    Without ``setup`` a list runs directly, without a shell. Shell lines stop at the first
    failure.
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

"""Reads job files (YAML): what to run, on which resources, and how a regroup treats the job.

The result is the body of the REST request, so a file can request only what the command line
can request. Unknown keys are refused by name; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    create_model,
)

from controller.schema.submit.marks import InFile, Named, ValueLimits, absent, core, marks
from controller.schema.submit.request import (
    CheckpointCopies,
    CheckpointRequest,
    JobRequest,
    LocalCheckpoints,
    SharedCheckpoints,
    VolumeRequest,
)
from controller.schema.submit.wire import constraint
from sitefile import SiteFileError, names
from sitefile.load import problems_of
from sitefile.quantities import NUMBER, Bytes, BytesPerSecond, off_word
from sitefile.words import exact_text
from sitefile.yaml_io import load_mapping, load_mappings

SCHEMA_COMMAND = "lightloom schema job"
MAX_BYTES = 256 * 1024
"""Limit of a job file: four times the longest command that an agent accepts."""
MAX_JOBS, MAX_JOBS_BYTES = 1000, 4 * 2**20
"""Limits of a file with several jobs: those of one request."""

Name = Annotated[str, StringConstraints(pattern=f"^{names.NAME}$")]
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


class _Part(_Strict):
    """A mapping of the file whose keys are fields of a job, or of a part of one."""

    names: ClassVar[Mapping[str, str]] = {}
    """The fields by their keys, where these differ."""


_PARTS: dict[type[Any], type[_Part]] = {}
"""By what they are in a request."""
_NAMES: Mapping[type[Any], str] = {
    VolumeRequest: "VolumeModel",
    LocalCheckpoints: "LocalModel",
    CheckpointCopies: "CopiesModel",
    SharedCheckpoints: "SharedModel",
    CheckpointRequest: "CheckpointModel",
}
_TEXTS = {VolumeRequest: "A volume of the site in every container of the job."}


def _part(kind: type[Any]) -> type[_Part]:
    """Return the mapping for a part of a job."""
    if kind not in _PARTS:
        hints = get_type_hints(kind, include_extras=True)
        keys = {field.name: _mark(hints[field.name]).key or field.name for field in fields(kind)}
        shown = {keys[field.name]: _entry(field, hints[field.name]) for field in fields(kind)}
        _PARTS[kind] = _made(_NAMES[kind], _TEXTS.get(kind, kind.__doc__), keys, shown)
    return _PARTS[kind]


def _made(
    name: str, text: str | None, keys: Mapping[str, str], shown: Mapping[str, Any]
) -> type[_Part]:
    made = create_model(name, __base__=_Part, __doc__=text, __module__=__name__, **shown)
    made.names = {key: name for name, key in keys.items()}
    return made


def _mark(hint: Any) -> InFile:
    return next(iter(marks(hint, InFile)), InFile())


def _entry(
    field: Any, hint: Any, special: Any = None, *, optional: bool = False
) -> tuple[Any, Any]:
    """Return the type of a key, and its default and description."""
    mark, limits = _mark(hint), next(iter(marks(hint, ValueLimits)), ValueLimits())
    limits = mark.limits or limits
    bare = core(hint)
    said = mark.text and mark.text.replace("{default}", str(field.default))
    text: dict[str, Any] = {"description": said} if said else {}
    if _is(bare, Mapping):
        return special, Field({}, **text)
    if _is(bare, Sequence):
        one = special or list[_kind(field.name, get_args(bare)[0], limits, mark)]  # type: ignore[misc]
        return one, Field([], max_length=limits.max_length, **text)
    kind = special or _kind(field.name, hint, limits, mark)
    if field.default is MISSING and not optional:
        return kind, Field(**text)
    return kind | None, Field(None, strict=True if bare is bool else None, **text)


def _is(kind: Any, what: type[Any]) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, what)


_UNITS = {"bytes": Bytes, "bps": BytesPerSecond}
"""By the last word of a field's name: people write numbers of these with their unit."""


def _kind(name: str, hint: Any, limits: ValueLimits, mark: InFile) -> Any:
    """Return the type of a key's value."""
    bare = core(hint)
    kind: Any = bare
    if is_dataclass(bare):
        kind = _part(kind)
    elif bare is int:
        unit = _UNITS.get(name.rpartition("_")[2])
        kind = unit or Annotated[int, constraint(limits, strict=True)]
    elif bare is float:
        kind = Annotated[float, constraint(limits), NUMBER]
    elif bare is str and (named := marks(hint, Named)):
        pattern = getattr(names, named[0].in_file or named[0].pattern)
        kind = Annotated[str, StringConstraints(pattern=f"^{pattern}$")]
    elif bare is str and limits != ValueLimits():
        kind = Annotated[str, constraint(limits)]
    elif mark.inline:
        kind = Literal[tuple(one.value for one in bare)]
    return kind


_SECTIONS = {
    "resources": "The resources of the job: one container per GPU.",
    "limits": "Limits of one container on its server.",
}
_LAYOUT = (
    *("apiVersion", "kind", "name", "project", "priority", "resources.gpus", "resources.kind"),
    *("resources.model", "resources.memory", "resources.endpoints", "image", "pull", "setup"),
    *("run", "env", "limits.cpu", "limits.memory", "limits.io", "volumes", "record", "locality"),
    *("policy", "rank_order", "pinned", "restart", "dark_tolerance_s", "checkpoint_grace_s"),
    *("checkpoint", "spares", "on_loss", "at_least", "time_limit_s", "time_limit_action"),
)
"""The order of the keys in the schema; others come last."""
_OWN: Mapping[str, tuple[Any, Any]] = {
    "apiVersion": (Literal["lightloom/v1"], "lightloom/v1"),
    "kind": (Literal["Job"], "Job"),
    "resources.kind": (Literal["gpu"], "gpu"),
    "setup": (
        str | None,
        Field(None, description="shell lines that run before `run`, in every container"),
    ),
    "run": (
        str | list[Word] | None,
        Field(
            None,
            description="shell lines, or a command as a list of words;"
            " default: the image's command",
        ),
    ),
}
"""Keys without a field in the request."""
_SPECIAL: Mapping[str, Any] = {
    "endpoints": list[Name],
    "env": dict[Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,63}$")], Variable],
    "record": Annotated[names.Recording | None, BeforeValidator(off_word)],
    "spares": Annotated[int, Field(ge=0, le=64, strict=True)]
    | Annotated[str, StringConstraints(pattern=r"^(6[0-4]|[1-5]?[0-9])\?$")],
}
"""Fields that people write in a form of their own."""


def _whole() -> type[_Part]:
    hints = get_type_hints(JobRequest, include_extras=True)
    asked = {
        field.name: field
        for field in fields(JobRequest)
        if field.name != "command" and not absent(hints[field.name], InFile)
    }
    keys = {name: _mark(hints[name]).key or name for name in asked}
    entries = dict(_OWN)
    for name, field in asked.items():
        entries[keys[name]] = _entry(field, hints[name], _SPECIAL.get(name), optional=True)
    shown: dict[str, Any] = {}
    for key in (*_LAYOUT, *(key for key in entries if key not in _LAYOUT)):
        section, _, last = key.rpartition(".")
        (shown.setdefault(section, {}) if section else shown)[last] = entries[key]
    for section, text in _SECTIONS.items():
        inner = {
            name: key.split(".")[1] for name, key in keys.items() if key.startswith(f"{section}.")
        }
        made = _made(f"{section.capitalize()}Model", text, inner, shown[section])
        shown[section] = made, made()
    return _made("JobFileModel", "A job.", keys, shown)


JobFileModel = _whole()
LimitsModel: Any = JobFileModel.model_fields["limits"].annotation


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


def request(job: Any) -> dict[str, Any]:
    """Return the REST request of a job; keys missing in the file are absent."""
    said: dict[str, Any] = {}
    for key, value in job:
        if key in _SECTIONS:
            said |= _said(value)
        elif key == "run":
            said["command"] = command(job.setup, value)
        elif key == "spares":
            said |= spares(value)
        elif key not in _OWN:
            said[job.names.get(key, key)] = _said(value)
    said.pop("kind", None)
    return {key: value for key, value in said.items() if value not in (None, [], {})}


def _said(value: Any) -> Any:
    if isinstance(value, _Part):
        return {value.names.get(key, key): _said(one) for key, one in value if one is not None}
    if isinstance(value, SecretModel):
        return value.model_dump()
    if isinstance(value, list):
        return [_said(one) for one in value]
    return {key: _said(one) for key, one in value.items()} if isinstance(value, dict) else value


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

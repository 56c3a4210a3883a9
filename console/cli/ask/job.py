"""The options of ``submit``, made from the fields of a job (``controller.schema.submit``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from console.cli.ask.checkpoint import asked
from console.cli.ask.hostlist import expand
from console.cli.ask.jobfile import limits, mounts
from console.cli.errors import usage
from console.cli.show.text import duration_s
from controller.schema.submit.marks import InFile, Option, ValueLimits, absent, core, marks
from controller.schema.submit.request import JobRequest

Document = dict[str, Any]
Verb = TypeVar("Verb", bound=Callable[..., None])

_DEFAULTS = {field.name: field.default for field in fields(JobRequest)}
_HINTS = get_type_hints(JobRequest, include_extras=True)
_OPTIONS = {
    field.name: marks(_HINTS[field.name], Option) or [Option()]
    for field in fields(JobRequest)
    if field.name != "command" and not absent(_HINTS[field.name], Option)
}
"""By field; a command is what stands behind ``--``."""


def _in_order() -> list[str]:
    """Return the fields in the order of the help; new ones stand before ``env``."""
    container = ("cpu", "memory_bytes", "io_bps", "volumes")
    names = [name for name in _OPTIONS if name not in {"count", "env", *container}]
    behind = names.index("min_memory_bytes") + 1
    return ["count", *names[:behind], *container, *names[behind:], "env"]


_ORDER = _in_order()
_TOGETHER = {"cpu", "memory_bytes", "io_bps", "checkpoint", "spares", "env"}
"""Fields that several options set, or that one option sets with others."""
_READ: Mapping[str, Callable[[Any], Any]] = {
    "time_limit_s": duration_s,
    "min_memory_bytes": lambda gib: int(gib * 2**30),
    "endpoints": lambda text: expand(text) if text else None,
    "volumes": mounts,
}
"""How a value is read that people write in a form of its own."""


def job_options(verb: Verb) -> Verb:
    """Give a verb an option for each field of a job; they arrive in its ``**said``."""
    own = inspect.signature(verb, eval_str=True).parameters.values()
    ctx, *others = [one for one in own if one.kind is not one.VAR_KEYWORD]
    count, *options = [_parameter(name, o) for name in _ORDER for o in _OPTIONS[name]]
    behind = 1 + [one.name for one in others].index("command")
    shown = [ctx, count, *others[:behind], *options, *others[behind:]]
    verb.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return verb


def _parameter(name: str, option: Option) -> inspect.Parameter:
    key, kind = option.key or name, option.kind or core(_HINTS[name])
    most = next(iter(marks(_HINTS[name], ValueLimits)), ValueLimits())
    ranged = kind in (int, float) and option.ge is None and most.ge is not None
    words = option.flag.split() or [f"--{key.replace('_', '-')}"]
    flags = [word for word in words if word.startswith("-")]
    text = option.help or next((mark.text or "" for mark in marks(_HINTS[name], InFile)), "")
    made = typer.Option(
        *flags,
        metavar=" ".join(words[len(flags) :]) or None,
        help=text.replace("{default}", str(_DEFAULTS[name])),
        min=most.ge if ranged else option.ge,
        max=most.le if ranged else None,
    )
    flag = kind is bool
    return inspect.Parameter(
        key,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if flag else None,
        annotation=Annotated[kind if flag else kind | None, made],
    )


def given(said: Mapping[str, Any], command: list[str] | None) -> Document:
    """Return the options as fields of the request. CliError with exit code 2 for an invalid one."""
    found: Document = {}
    for name in _ORDER:
        if name in _TOGETHER:
            continue
        (option,) = _OPTIONS[name]
        value = said[option.key or name]
        if value is None or value is False or value == []:
            continue
        found[name] = _READ.get(name, _plain)(value)
    found |= {
        "command": command or None,
        "env": _environment(said["env"] or [], said["secrets"] or []) or None,
        **limits(cpu=said["cpu"], memory=said["memory_bytes"], io=said["io_bps"]),
        **asked(
            size=said["checkpoint_size"],
            rule=said["checkpoint_rule"],
            store=said["checkpoint_store"],
            spares=said["spares"],
        ),
    }
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _environment(plain: list[str], secrets: list[str]) -> Document:
    found: Document = {}
    for pair in plain:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise usage(f"--env {pair!r} is not K=V", "for example --env SEED=7")
        found[key] = value
    for pair in secrets:
        key, _, name = pair.partition("=")
        if not name or not key:
            # Not repeated: who mistakes the option for --env has written the value here.
            raise usage("--secret is not K=NAME", "for example --secret WANDB_API_KEY=wandb")
        if key in found:
            raise usage(f"{key} is given by --env and --secret", "leave one of them out")
        found[key] = {"secret": name}
    return found

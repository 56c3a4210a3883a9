"""Every field of a job is in every place, or its declaration says why it is missing."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from console.cli.verbs.jobs import submit
from controller.jobs.admission import spec_of
from controller.schema.jobs import JobBody, read_job
from controller.schema.submit.file import JobFileModel
from controller.schema.submit.marks import Absent, InFile, Option, marks
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord, JobVolume
from controller.store.tables import JOB
from tests.parts.controller.rack import Rack

FIELDS = [field.name for field in fields(JobRequest)]
HINTS = get_type_hints(JobRequest, include_extras=True)
SCHEMA = JobBody.model_json_schema()
FORM = Path("console/web/static/js/views/submit.js").read_text(encoding="utf-8")
MADE: dict[str, Any] = {
    "name": "red",
    "project": "p",
    "restart": "on-failure:2",
    "env": {"A": "b", "C": {"secret": "d"}},
    "volumes": [{"volume": "v", "path": "/v", "read_only": True}],
    "checkpoint": {"local": {"size_bytes": 3}, "shared": {"store": "s"}, "replicas": "identical"},
}
"""Values of fields that have parts or a pattern."""


def kind(name: str) -> dict[str, Any]:
    """Return what the published schema says of a field."""
    own: dict[str, Any] = SCHEMA["properties"][name]
    some = next((one for one in own.get("anyOf", ()) if one.get("type") != "null"), own)
    return own | some | SCHEMA["$defs"].get(some.get("$ref", "").rpartition("/")[2], {})


def asked(name: str) -> JobRequest:
    """Return a request that says this field, and not its default."""
    of = kind(name)
    texts = [word for word in of.get("enum", ["some"]) if word != of.get("default")]
    usual = {"boolean": not of.get("default"), "string": texts[0], "array": ["a"], "object": {}}
    return read_job({"count": 1} | {name: MADE.get(name, usual.get(of["type"], 2))})


def missing(name: str, place: type[Any]) -> str:
    """Return why a field is missing on purpose; empty if it is not."""
    found = [mark.why for mark in marks(HINTS[name], Absent) if mark.place is place]
    return found[0] if found else ""


@pytest.mark.parametrize("name", FIELDS)
def test_a_request_says_it_and_the_store_keeps_it(name: str) -> None:
    request, plain = asked(name), read_job({"count": 1})
    assert getattr(request, name) != getattr(plain, name)
    volumes = tuple(JobVolume(v.volume, v.path, bool(v.read_only)) for v in request.volumes)
    record = JobRecord("red", spec_of(request, volumes), "i", 1.0)
    assert JOB.read(JOB.write(record)) == record
    assert getattr(record.request, name) != getattr(spec_of(plain), name)


async def test_the_view_shows_them(rack: Rack) -> None:
    def shown(request: JobRequest) -> dict[str, Any]:
        volumes = tuple(JobVolume(v.volume, v.path, bool(v.read_only)) for v in request.volumes)
        record = JobRecord("red", spec_of(request, volumes), request.image or "i", 1.0)
        rack.parts.state.jobs.put(replace(record, endpoints=tuple(request.endpoints)))
        return rack.desks.jobs.job("red").model_dump()

    plain = shown(read_job({"count": 1}))
    for name in set(FIELDS) - {"name"}:
        at = "spares_asked" if name == "spares" else name
        assert shown(asked(name))[at] != plain[at], name
    assert shown(asked("env"))["secrets"] == {"C": "d"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_file_says_it(name: str) -> None:
    keys = [key for key, of in JobFileModel.names.items() if of == name] or [name]
    section, _, last = keys[0].rpartition(".")
    model: Any = JobFileModel.model_fields[section].annotation if section else JobFileModel
    there = last in model.model_fields or (name == "command" and "run" in model.model_fields)
    assert there != bool(missing(name, InFile))


@pytest.mark.parametrize("name", FIELDS)
def test_the_command_line_says_it(name: str) -> None:
    options = inspect.signature(submit).parameters
    keys = [option.key or name for option in marks(HINTS[name], Option) or [Option()]]
    assert all((key in options) != bool(missing(name, Option)) for key in keys)


@pytest.mark.parametrize("name", FIELDS)
def test_the_form_asks_for_it(name: str) -> None:
    words = FORM.split("const LABELS = {")[1].split("};")[0]
    elsewhere = FORM.split("const ELSEWHERE = [")[1].split("];")[0]
    shown_without_words = kind(name)["type"] in FORM.split("const PLAIN = [")[1].split("];")[0]
    assert f"\n  {name}: " in words or f'"{name}"' in elsewhere or shown_without_words

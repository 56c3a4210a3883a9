"""Redacts views for the readers of some projects. Pure: other jobs are left out or blanked.

What a reader sees of a view is marked on its fields (``controller.schema.visibility``); this module
applies the marks. Views whose fields depend on each other have a rule of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from functools import cache, cached_property
from types import EllipsisType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic_core import PydanticUndefined

from controller.people.authz import ALL_PROJECTS, Owned
from controller.schema.base import View
from controller.schema.fabric import NodeView
from controller.schema.live import TopView
from controller.schema.plans import TransactionView
from controller.schema.stream import ChangedView, SampleView, TransactionFrameView
from controller.schema.visibility import Instead, Visibility
from controller.schema.volumes import VolumeView
from controller.stream.feed import Frame

_JOB = re.compile(r"\b(jobs?[ /])([a-z0-9][a-z0-9-]*)")
"""A job as the controller's messages name it."""
_CONTAINER = re.compile(r"\bll-(?:c-)?([a-z0-9][a-z0-9-]*)-\d+-\d+\b")
_ADDRESS = re.compile(r"\S+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b")
_OPEN = frozenset({"job", "transaction", "endpoint"})
"""Kinds of objects whose events a reader of all projects sees; the others are devices."""
ANOTHER = "another project's job"
AnyView = TypeVar("AnyView", bound=View)


@dataclass(slots=True, frozen=True)
class _Part:
    """What readers of one kind see of a view."""

    blank: Mapping[str, Any]
    """Fields that are blank for them, and what those hold then."""
    messages: tuple[str, ...]
    jobs: tuple[str, ...]
    """Fields of which they see own jobs only."""
    projects: tuple[str, ...]
    """Fields of which they see own projects only."""
    views: tuple[str, ...]
    """Fields that hold views, which have marks of their own."""


@dataclass(slots=True, frozen=True)
class _Marks:
    """The marks of a view's fields."""

    gates: tuple[tuple[Visibility, str], ...]
    """Fields that name what the view belongs to."""
    parts: Mapping[tuple[bool, bool], _Part | None]
    """By whether the reader sees all projects, and whether an own job uses the object; None is all
    of it."""


_FIGURES = frozenset({int, float, bool, NoneType, EllipsisType})
_CONTAINERS = frozenset({list, tuple, dict, Union, UnionType})
"""Types whose arguments are the types of their content."""
_GATES = frozenset(
    {Visibility.JOB, Visibility.PROJECT, Visibility.SUBJECT, Visibility.HOLDER, Visibility.ENDPOINT}
)


@cache
def marks_of(view: type[View]) -> _Marks:
    """Return a view's marks. TypeError for a field that can hold text and has no mark.

    The parts of a view are examined with it.
    """
    gates: list[tuple[Visibility, str]] = []
    fields: dict[str, frozenset[Visibility | type[View]]] = {}
    blank: dict[str, Any] = {}
    for name, info in view.model_fields.items():
        declared = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        found = tuple(_examined(declared, f"{view.__name__}.{name}"))
        fields[name] = marks = frozenset(one for one in found if not isinstance(one, Instead))
        if View in marks and len(marks) > 1:
            raise TypeError(f"{view.__name__}.{name} has parts with marks of their own, and marks")
        gates += _gates(f"{view.__name__}.{name}", name, info.annotation, marks)
        instead = next((one.text for one in found if isinstance(one, Instead)), None)
        blank[name] = _blank(info) if instead is None else instead

    def part(whole: bool, own: bool) -> _Part | None:
        hidden = {Visibility.KEEPERS}
        hidden |= set() if whole else {Visibility.ALL_PROJECTS}
        hidden |= set() if own else {Visibility.OWN, Visibility.HOLDER}
        left = {name: marks for name, marks in fields.items() if not marks & hidden}

        def marked(mark: Visibility | type[View]) -> tuple[str, ...]:
            return tuple(name for name, marks in left.items() if mark in marks)

        lists = {n for n in fields if get_origin(view.model_fields[n].annotation) is list}
        found = _Part(
            blank={name: blank[name] for name in fields if name not in left},
            messages=marked(Visibility.MESSAGE),
            jobs=marked(Visibility.JOBS),
            projects=() if whole else tuple(n for n in marked(Visibility.PROJECT) if n in lists),
            views=marked(View),
        )
        return found if any(astuple(found)) else None

    both = (True, False)
    return _Marks(tuple(gates), {(w, own): part(w, own) for w in both for own in both})


def _gates(
    where: str, name: str, kind: Any, marks: frozenset[Visibility | type[View]]
) -> list[tuple[Visibility, str]]:
    """Return what a field states of the view's owner. TypeError for marks without effect."""
    gates = marks & _GATES
    if get_origin(kind) is dict and marks & {View, Visibility.MESSAGE}:
        raise TypeError(f"{where} has views or messages by key, which no mark reaches")
    if kind == list[str] and gates == {Visibility.PROJECT}:
        return []
    if gates and kind not in (str, str | None):
        raise TypeError(f"{where} is not one name: it cannot say whose the view is")
    return [(mark, name) for mark in _GATES if mark in gates]


def _examined(declared: Any, where: str) -> Iterator[Visibility | Instead | type[View]]:
    """Yield the marks in a field's type, and ``View`` if parts of it have marks of their own."""
    kind = get_origin(declared) or declared
    if kind is Annotated:
        inner, *metadata = get_args(declared)
        marked = any(isinstance(one, Visibility) for one in metadata)
        yield from (one for one in metadata if isinstance(one, Visibility | Instead))
        yield from () if marked else _examined(inner, where)
    elif isinstance(kind, type) and issubclass(kind, View):
        marks_of(declared)
        yield View
    elif kind in _CONTAINERS and (parts := get_args(declared)):
        for part in parts:
            yield from _examined(part, where)
    elif not (isinstance(kind, TypeVar) or kind is Literal or kind in _FIGURES or _is_enum(kind)):
        raise TypeError(f"nothing says to whom {where} is shown: mark it")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _blank(info: Any) -> Any:
    """Return a field's default, or the empty value of its type."""
    default = info.get_default(call_default_factory=True)
    if default is not PydanticUndefined:
        return default
    kind = get_origin(info.annotation) or info.annotation
    return kind() if kind in (str, list, dict) else None


class Redactor:
    """What a reader may see: jobs of some projects, and no messages of devices."""

    def __init__(self, projects: frozenset[str], whose: Mapping[str, Owned]) -> None:
        """``projects`` are the reader's, ``*`` is all; ``whose`` has every known job by name, also
        jobs that ended."""
        self.projects = projects
        self.whole = ALL_PROJECTS in projects
        """True if no job is hidden: only messages of devices are removed."""
        self._whose = whose

    def view(self, view: AnyView) -> AnyView | None:
        """Return the visible part of a view, None for nothing. TypeError for an unmarked text.

        Views of checkpoints, recoveries and advice are those of own jobs: who asks has checked it.
        """
        rule = _RULES.get(type(view), Redactor._marked)
        return cast(AnyView | None, rule(self, view))

    def owns(self, job: str | None) -> bool:
        """Whether a job is the reader's; for a reader of all projects always true."""
        if self.whole:
            return True
        known = self._whose.get(job) if job is not None else None
        return known is not None and known.project in self.projects

    def text(self, text: str) -> str:
        """Return ``text`` without names of other projects' jobs and addresses of devices.

        Users' jobs are named ``<project>-…``: such a name is removed whether or not that job
        exists, so that a text which a user can influence reveals nothing.
        """
        if not text:
            return text
        text = _ADDRESS.sub("an address", text)
        if self.whole:
            return text
        text = _CONTAINER.sub(lambda m: m[0] if self.owns(m[1]) else "another container", text)
        return _JOB.sub(lambda m: ANOTHER if self._foreign(m[2]) else m[0], text)

    def frame(self, item: Frame) -> Frame | None:
        """Return the visible part of one message of the live feed."""
        shown = self.view(item.data)
        if shown is None or shown is item.data:
            return item if shown is not None else None
        return Frame(item.type, shown, item.id)

    def _foreign(self, name: str) -> bool:
        return not self.owns(name) and ("-" in name or name in self._whose)

    @cached_property
    def _held(self) -> frozenset[str]:
        """The endpoints that own jobs hold."""
        own = (job for job in self._whose.values() if job.holding and self.owns(job.job))
        return frozenset(endpoint for job in own for endpoint in job.endpoints)

    def _marked(self, view: AnyView) -> AnyView | None:
        """Return a view as its marks say; the same object if the reader sees all of it."""
        marks, own = marks_of(type(view)), True
        for gate, name in marks.gates:
            value = getattr(view, name)
            if gate is Visibility.HOLDER or gate is Visibility.ENDPOINT:
                own = self._uses(gate, value)
            elif not self._belongs(gate, value):
                return None
        part = marks.parts[self.whole, own]
        if part is None:
            return view
        changes = dict(part.blank)
        for names, cut in (
            (part.messages, self._messages),
            (part.jobs, self._jobs),
            (part.projects, self._projects),
            (part.views, self._views),
        ):
            for name in names:
                value = getattr(view, name)
                if value and (shown := cut(value)) is not value:
                    changes[name] = shown
        return view.model_copy(update=changes) if changes else view

    def _uses(self, gate: Visibility, value: str | None) -> bool:
        """Whether an own job uses the object."""
        return self.owns(value) if gate is Visibility.HOLDER else self.whole or value in self._held

    def _belongs(self, gate: Visibility, value: str) -> bool:
        """Whether a view with this job, project or subject is the reader's to see."""
        if gate is Visibility.SUBJECT:
            kind, _, name = value.partition("/")
            return (kind == "job" and self.owns(name)) or (self.whole and kind in _OPEN)
        return self.owns(value) if gate is Visibility.JOB else self._sees(value)

    def _sees(self, project: str) -> bool:
        return self.whole or project in self.projects

    def _messages(self, value: str | list[str]) -> str | list[str]:
        if isinstance(value, list):
            return [self.text(text) for text in value]
        shown = self.text(value)
        return value if shown == value else shown

    def _jobs(self, value: list[str] | dict[str, str]) -> list[str] | dict[str, str]:
        """Keep own jobs: of names, or of names with a message."""
        if isinstance(value, dict):
            return {job: self.text(why) for job, why in value.items() if self.owns(job)}
        return value if self.whole else [job for job in value if self.owns(job)]

    def _projects(self, value: list[str]) -> list[str]:
        return [name for name in value if self._sees(name)]

    def _views(self, value: View | list[View]) -> View | list[View] | None:
        """Return the visible part of a view, or of those in a list."""
        if isinstance(value, View):
            return self.view(value)
        same, shown = True, []
        for view in value:
            part = self.view(view)
            same = same and part is view
            if part is not None:
                shown.append(part)
        return value if same else shown

    def _transaction(self, view: TransactionView) -> TransactionView | None:
        """Return the part of a transaction that moves own jobs, None if it moves none."""
        shown = self._marked(view)
        if self.whole or shown is None:
            return shown
        if not shown.jobs:
            return None
        mine = frozenset(e for job in shown.jobs for e in self._whose[job].endpoints)
        changes: dict[str, object] = {
            "moves": [move for move in view.moves if move.endpoint in mine],
            "dark_time_s": {e: s for e, s in view.dark_time_s.items() if e in mine},
        }
        if len(shown.jobs) < len(view.jobs):
            changes["error"] = ""
        if isinstance(view, TransactionFrameView):
            changes["circuits"] = view.circuits.model_copy(
                update={
                    "break_": [s for s in view.circuits.break_ if s.endpoint in mine],
                    "make": [s for s in view.circuits.make if s.endpoint in mine],
                }
            )
        return shown.model_copy(update=changes)

    def _top(self, view: TopView) -> TopView:
        """Return the rows of own jobs; rows of endpoints without other jobs."""
        jobs = [row for row in view.jobs if self.owns(row.name)]
        own = {
            "jobs": jobs,
            "containers": [row for row in view.containers if self.owns(row.job)],
            "excess_span": sum(row.excess_span or 0 for row in jobs),
        }
        rest = view.model_copy(update={"jobs": [], "containers": []})
        return cast(TopView, self._marked(rest)).model_copy(update=own)

    def _volume(self, view: VolumeView) -> VolumeView | None:
        """Return a volume that own projects may use, with their data; None for another one."""
        shown = self._marked(view)
        hidden = shown is None or (view.projects and not shown.projects and not shown.data)
        return None if hidden else shown

    def _changed(self, view: ChangedView) -> ChangedView | None:
        """Return that an own job, or an object of the fabric, has changed."""
        if view.kind == "job":
            return view if view.name == "" or self.owns(view.name) else None
        if view.kind == "measurement" and not self.whole:
            return view.model_copy(update={"name": ""})
        return view

    def _sample(self, view: SampleView) -> SampleView:
        """Return the figures of own jobs. It has thousands of rows, every second."""
        if self.whole:
            return view
        return SampleView(
            time=view.time,
            jobs=[job for job in view.jobs if self.owns(job.name)],
            containers=[container for container in view.containers if self.owns(container.job)],
            links=[],
        )

    def node(self, view: NodeView, containers: int) -> NodeView:
        """Return a server with the number of its containers that the reader sees."""
        shown = cast(NodeView, self._marked(view))
        return shown.model_copy(update={"containers": containers})


_RULES: Mapping[type[View], Callable[[Redactor, Any], View | None]] = {
    ChangedView: Redactor._changed,
    SampleView: Redactor._sample,
    TopView: Redactor._top,
    TransactionFrameView: Redactor._transaction,
    TransactionView: Redactor._transaction,
    VolumeView: Redactor._volume,
}
"""Views whose fields depend on each other, and the largest; else every field stands for itself."""

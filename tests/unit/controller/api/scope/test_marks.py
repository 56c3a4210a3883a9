"""What readers of some projects see is marked on the fields of views, and closed by default."""

from __future__ import annotations

from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, JsonValue, create_model

from controller.api.app import PARTS
from controller.api.common import DesksOf, SightOf, require_sight
from controller.api.operation import operation, operation_of
from controller.api.scope.redact import Redactor, marks_of
from controller.people.authz import Owned
from controller.schema.base import RequestModel, View
from controller.schema.fabric import AggregatorView, NodeView
from controller.schema.live import TopView
from controller.schema.stream import SampleView, TransactionFrameView
from controller.schema.visibility import Instead, Message, Plain, Visibility

OWNED = {
    owned.job: owned
    for owned in (
        Owned("alpha-red", "alpha", ("gpu0", "gpu2"), holding=True),
        Owned("alpha-old", "alpha", ("gpu1",), holding=False),
        Owned("beta-secret", "beta", ("gpu1", "gpu3"), holding=True),
    )
}
ADDRESS = "tl1://10.0.0.1:3082"
TEXTS = (
    "gpu1",
    "job/beta-secret",
    "job/alpha-red",
    "transaction/t1",
    "aggregator/as0",
    f"it waits for job beta-secret; {ADDRESS} is silent",
    "ll-beta-secret-0-3 holds it",
)


class Unmarked(View):
    text: str


class Around(View):
    inside: list[Unmarked | None]


class InsteadOnly(View):
    text: Annotated[str, Instead("hidden")]


class Asked(RequestModel):
    count: int


class Repeats(View):
    request: Asked


class Both(View):
    parts: dict[Plain, Around | TopView]


@pytest.mark.parametrize("view", [Unmarked, Around, InsteadOnly, Repeats, Both])
def test_a_view_with_a_text_that_has_no_mark_is_refused(view: type[View]) -> None:
    with pytest.raises(TypeError, match=r"mark|inside|request|text"):
        marks_of(view)


@pytest.mark.parametrize(
    "kind",
    [
        *(dict, list, object, bytes, JsonValue, Owned),
        *(dict[int, TopView], dict[Plain, Message], Annotated[list[str], Visibility.JOB]),
        Annotated[list[str] | None, Visibility.PROJECT],
    ],
)
def test_a_field_that_no_mark_reaches_is_refused(kind: Any) -> None:
    view = create_model("Odd", __base__=View, field=(kind, ...))
    with pytest.raises(TypeError, match=r"Odd\.field"):
        marks_of(view)


def test_a_route_with_such_an_answer_does_not_start() -> None:
    router = APIRouter()

    @router.get("/unmarked")
    @operation("jobs:read")
    async def unmarked(desks: DesksOf, sight: SightOf) -> Around:
        """Show a view without marks."""
        raise NotImplementedError

    (route,) = router.routes
    assert isinstance(route, APIRoute)
    with pytest.raises(TypeError, match=r"Unmarked\.text"):
        require_sight(route)


def views_of(declared: Any) -> set[type[View]]:
    found = {declared} if isinstance(declared, type) and issubclass(declared, View) else set()
    return found.union(*map(views_of, get_args(declared))) if get_args(declared) else found


def shown_to_users() -> list[type[View]]:
    """The views that answers to users hold, and the messages of the live feed."""
    found: set[type[View]] = {SampleView, TransactionFrameView}
    for part in PARTS:
        for route in part.router.routes:
            assert isinstance(route, APIRoute)
            if operation_of(route).verb == "jobs:read" and isinstance(route.response_model, type):
                answer = route.response_model
                fields = getattr(answer, "model_fields", {})
                items = views_of(fields["items"].annotation) if "items" in fields else {answer}
                found |= {one for one in items if issubclass(one, View)}
    return sorted(found - {NodeView}, key=lambda view: view.__name__)


def made(declared: Any, random: Random) -> Any:  # noqa: PLR0911
    """Return any value of a type, its texts drawn from ``TEXTS``, names of jobs from ``OWNED``."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated:
        if set(args) & {Visibility.JOB, Visibility.HOLDER}:
            return random.choice(list(OWNED))
        if Visibility.JOBS in args:
            return list(OWNED)
        if Visibility.PROJECT in args:
            return random.choice(["alpha", "beta"])
        return made(args[0], random)
    if origin is Literal:
        return random.choice(args)
    if origin is Union or isinstance(declared, type(int | str)):
        return made(random.choice(args), random)
    if origin is list:
        return [made(args[0], random) for _ in range(random.randrange(4))]
    if origin is dict:
        return {made(args[0], random): made(args[1], random) for _ in range(random.randrange(4))}
    if declared in (str, Any):
        return random.choice(TEXTS)
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        fields = declared.model_fields.items()
        types = {n: Annotated[f.annotation, *f.metadata, n] for n, f in fields}
        return declared.model_construct(**{n: made(kind, random) for n, kind in types.items()})
    if isinstance(declared, type) and hasattr(declared, "__members__"):
        return random.choice(list(declared))
    return {type(None): None, bool: True, int: random.randrange(9), float: 0.5}[declared]


def hidden_texts(view: View) -> list[str]:
    """Return the texts of a shown view that no mark shows to all."""
    found: list[str] = []
    for name, info in type(view).model_fields.items():
        declared = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        if "Visibility.ALL" in repr(declared):  # or ALL_PROJECTS: all of it, or nothing
            continue
        value = getattr(view, name)
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        for part in parts if isinstance(parts, list) else [parts]:
            found += hidden_texts(part) if isinstance(part, View) else [part]
    return [text for text in found if isinstance(text, str)]


@pytest.mark.parametrize("view", shown_to_users())
def test_no_marked_text_names_what_the_reader_must_not_see(view: type[View]) -> None:
    """Whatever a view holds: texts that are not open to all name no other job and no device."""
    random, seen = Random(view.__name__), 0  # noqa: S311 - a test's choice
    for reader in (frozenset({"alpha"}), frozenset[str](), frozenset({"*"})):
        redactor = Redactor(reader, OWNED)
        for _ in range(100):
            shown = redactor.view(made(view, random))
            texts = [] if shown is None else hidden_texts(shown)
            seen += shown is not None
            assert not [text for text in texts if ADDRESS in text]
            if "*" not in reader:
                assert not [text for text in texts if "beta-secret" in text]
    assert seen


def test_the_figures_of_an_object_are_those_of_its_own_job() -> None:
    view = AggregatorView.model_construct(jobs=["alpha-red", "beta-secret"], ports=[])
    assert Redactor(frozenset({"alpha"}), OWNED).view(view).jobs == ["alpha-red"]  # type: ignore[union-attr]
    assert Redactor(frozenset({"*"}), OWNED).view(view) is view

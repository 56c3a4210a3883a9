"""Bodies of requests, made from declared values (``job.py``).

A body checks what a request holds and has the published schema; ``RequestBody.value`` is the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, create_model

from controller.schema.base import RequestModel
from controller.schema.submit.marks import Named, ValueCheck, ValueLimits
from sitefile import names

_LIST: Any = list
_DICT: Any = dict


class RequestBody(RequestModel):
    """Base of the bodies."""

    kind: ClassVar[type[Any]]
    """What it is the body of."""

    def value(self) -> Any:
        """Return what the request says, with the defaults of all that it leaves out."""
        found = vars(self)
        return self.kind(**{name: _value(found[name]) for name in self.model_fields_set})


_BODIES: dict[type[Any], type[RequestBody]] = {}
"""By what they are the bodies of."""
_MADE: set[type[Any]] = set()


def body(
    kind: type[Any], base: type[RequestBody] = RequestBody, **special: Any
) -> type[RequestBody]:
    """Return the body of a dataclass. ``special`` gives types of fields that are made by hand."""
    hints = get_type_hints(kind, include_extras=True)
    shown: dict[str, Any] = {
        field.name: (special.get(field.name) or _typed(hints[field.name]), _default(field))
        for field in fields(kind)
    }
    name, text = kind.__name__, kind.__doc__
    made = create_model(name, __base__=base, __doc__=text, __module__=__name__, **shown)
    made.kind = kind
    _BODIES[kind] = made
    _MADE.add(made)
    return made


def bare(annotation: Any) -> Any:
    """Return a type without its limits, as JSON has it."""
    return _typed(annotation, checked=False)


def _typed(annotation: Any, *, checked: bool = True) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marked, marks = args[0], args[1:]
        limits = _limits(marks) if checked else []
        options = get_args(marked) if get_origin(marked) in (Union, UnionType) else (marked,)
        typed = [
            one if one is type(None) else _limited(_typed(one, checked=checked), limits)
            for one in options
        ]
        return Union[tuple(typed)]  # noqa: UP007 - of as many as there are
    if origin in (Union, UnionType):
        return Union[tuple(_typed(one, checked=checked) for one in args)]  # noqa: UP007
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _DICT[args[0], _typed(args[1], checked=checked)]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _LIST[_typed(args[0], checked=checked)]
    if not isinstance(annotation, type) or not is_dataclass(annotation):
        return annotation
    return _BODIES.get(annotation) or body(annotation)


def _limited(kind: Any, limits: Sequence[Any]) -> Any:
    return Annotated[kind, *limits] if limits else kind


def _limits(marks: Sequence[Any]) -> list[Any]:
    """Return what pydantic checks, in its own terms."""
    found: list[Any] = []
    for mark in marks:
        match mark:
            case ValueLimits():
                found.append(constraint(mark))
            case Named(pattern=pattern):
                found.append(Field(pattern=f"^{getattr(names, pattern)}$"))
            case ValueCheck(check=check):
                found.append(AfterValidator(lambda value, check=check: (check(value), value)[1]))
    return found


def constraint(limits: ValueLimits, **more: Any) -> Any:
    """Return limits as pydantic checks them."""
    return Field(
        **{name: most for name, most in asdict(limits).items() if most is not None}, **more
    )


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return Field(default_factory=field.default_factory)
    if field.default is MISSING:
        return ...
    if field.default == ():
        return Field(default_factory=list)
    return _BODIES[type(field.default)]() if is_dataclass(field.default) else field.default


def _value(found: Any) -> Any:
    if isinstance(found, list):
        return [_value(one) for one in found]
    if isinstance(found, dict):
        return {name: _value(one) for name, one in found.items()}
    return found.value() if type(found) in _MADE else found

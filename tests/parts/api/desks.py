"""Lets one method of a real controller's desk answer as a test orders, and keeps what it is asked.

For what no controller in a short test says by itself; all other methods stay as they are.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class Asked:
    """The arguments of one call."""

    args: tuple[Any, ...]
    named: dict[str, Any]


def answer(desk: object, **answers: object) -> None:
    """Answer so from now on: an error is raised, a function is called, any other value returned."""
    for name, given in answers.items():
        setattr(desk, name, _method(getattr(desk, name), given))


def restore(desk: object, *names: str) -> None:
    """Let methods answer by themselves again."""
    for name in names:
        delattr(desk, name)


def kept(desk: object, name: str) -> list[Asked]:
    """Return what a method will have been asked; its answers stay as they are."""
    method = getattr(desk, name)
    asked: list[Asked] = []

    def keep(*args: Any, **named: Any) -> Any:
        asked.append(Asked(args, named))
        return method(*args, **named)

    setattr(desk, name, keep)
    return asked


async def never(*_: object, **__: object) -> None:
    """Do not answer."""
    await asyncio.Event().wait()


def _method(method: Any, given: object) -> Any:
    if callable(given):
        return given

    def at_once(*_: object, **__: object) -> object:
        if isinstance(given, Exception):
            raise given
        return given

    async def later(*_: object, **__: object) -> object:
        return at_once()

    return later if inspect.iscoroutinefunction(method) else at_once

"""Which operation a request asks for. A route that declares nothing does not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fastapi.routing import APIRoute
from starlette.routing import compile_path

from controller.api.operation import BODY_BYTES, Operation, operation_of

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


@dataclass(slots=True, frozen=True)
class Matched:
    """The operation of a request; public if ``verb`` is None."""

    name: str
    verb: str | None
    params: Mapping[str, str]
    continuing: bool = False


class RouteTable:
    """Finds the operation of a request before anything of it is read."""

    def __init__(self, routes: Iterable[tuple[str, APIRoute]]) -> None:
        """Take prefixes and routes. RuntimeError for a route that declares nothing."""
        self._routes = []
        self.operations: dict[str, Operation] = {}
        """What is declared, by name."""
        for prefix, route in routes:
            declared = self.operations[route.name] = operation_of(route)
            pattern = compile_path(prefix + route.path)[0]
            self._routes.append((frozenset(route.methods or ()), pattern, route.name, declared))

    def methods(self, path: str) -> frozenset[str]:
        """Return the methods that a path has."""
        return frozenset().union(*(m for m, pattern, *_ in self._routes if pattern.match(path)))

    def largest_body(self, method: str, path: str) -> int:
        """Return the largest body in bytes that a request may have."""
        return next(
            (
                declared.body
                for methods, pattern, _, declared in self._routes
                if method in methods and pattern.match(path)
            ),
            BODY_BYTES,
        )

    def find(self, method: str, path: str) -> Matched | None:
        """Return the operation, None if this method and path have none."""
        for methods, pattern, name, declared in self._routes:
            if method in methods and (found := pattern.match(path)):
                return Matched(name, declared.verb, found.groupdict(), declared.continuing)
        return None

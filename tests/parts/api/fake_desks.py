"""The desks of the fake controller: the names by which the API asks for what it fakes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

_READS = {
    "jobs": "projects highest_priority owners jobs job! top logs",
    "fabric": "endpoint_names endpoints switches! events!",
    "optics": "",
    "live": "series power_series! trace!",
    "health": "health!",
    "plans": "transaction! transactions!",
    "rollouts": "rollouts! rollout!",
    "allocation": "export=allocation!",
    "drift": "",
    "quarantine": "",
    "drains": "views=drains!",
    "checkpoints": "checkpoints checkpoint_advice",
    "recoveries": "of_job=recoveries! of_site=site_recoveries",
    "comms": "view=comms",
    "advice": "predictions! advise=advice",
    "measurements": "views=measurements! view=measurement",
    "images": "",
    "volumes": "",
    "data": "",
    "usage": "",
    "engine": "",
    "feed": "read=watch",
}
_CHANGES = {
    "jobs": "submit submit_all cancel",
    "plans": "make_plan apply abort!",
    "rollouts": "begin=roll_out abort=abort_rollout",
    "allocation": "bring_back",
    "drains": "drain undrain",
    "checkpoints": "verify_checkpoints drop_checkpoint",
    "measurements": (
        "start=measure take=import_measurement cancel=cancel_measurement remove=remove_measurement"
    ),
}
"""By desk: its methods; after ``=`` what the fake calls it, ``!`` for one that is no coroutine."""


class _Fake(Protocol):
    epoch: int
    queries: Any
    commands: Any


class FakeDesks:
    """Stands for ``controller.service.desks.Desks``."""

    def __init__(self, fake: _Fake) -> None:
        self._fake = fake
        for name, reads in _READS.items():
            known = _methods("queries", reads) | _methods("commands", _CHANGES.get(name, ""))
            setattr(self, name, _Desk(fake, known))

    @property
    def epoch(self) -> int:
        return self._fake.epoch


class _Desk:
    """Finds a method of the fake at the time of the call, so that a test can replace it."""

    def __init__(self, fake: _Fake, methods: Mapping[str, tuple[str, str, bool]]) -> None:
        self._fake = fake
        self._methods = methods

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            part, known, at_once = self._methods[name]
        except KeyError:
            raise AttributeError(name) from None
        method: Callable[..., Any] = getattr(getattr(self._fake, part), known)
        return (lambda *asked, **named: _ended(method(*asked, **named))) if at_once else method


def _methods(part: str, text: str) -> dict[str, tuple[str, str, bool]]:
    found = {}
    for word in text.split():
        name, _, known = word.removesuffix("!").partition("=")
        found[name] = (part, known or name, word.endswith("!"))
    return found


def _ended(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that gives way at most, and never waits, to its end."""
    while True:
        try:
            waits = work.send(None)
        except StopIteration as end:
            return end.value
        assert waits is None, "what answers at once cannot wait"

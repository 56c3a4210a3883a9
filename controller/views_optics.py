"""The health of an optical switch's ports, and what the switch complains about."""

from __future__ import annotations

from controller.views_base import View


class OpticalPortView(View):
    """One cabled port as its switch reports it. Its light is in the list of powers."""

    port: str
    health: str
    """``blocked`` (sound, no circuit), ``tuning``, ``tuned`` or ``failed``."""
    label: str = ""
    """What the operator of the switch calls it."""


class AlarmView(View):
    """A standing fault in the switch's own words."""

    object: str
    severity: str
    text: str


class OpticsView(View):
    """One optical switch, read at ``time``."""

    switch: str
    time: float
    ports: list[OpticalPortView]
    alarms: list[AlarmView]

"""Loads personalities: data files with identity, timing and behaviour, one per model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import yaml


class Busy(StrEnum):
    """How a switch handles a make on a port in use."""

    REJECT = "reject"
    DISPLACE = "displace"


@dataclass(slots=True, frozen=True)
class SwitchTiming:
    """Times of a switch, in seconds."""

    command_s: float
    """Time of one changing command."""
    mirror_s: float
    """Time of one circuit, from command to light."""
    bulk_s: float
    """Longest time of one bulk of circuits."""
    link_up_s: float = 0.0
    """Time from light to carrier at the far ends."""
    conflict_bulk_s: float = 0.5
    """Longest time of a bulk in which the switch itself resolves conflicts."""
    boot_s: float = 1.0
    """Time from a restart to the first response."""
    read_s: float = 0.0
    """Time of one command that changes nothing."""


@dataclass(slots=True, frozen=True)
class LightBudget:
    """Powers in dBm, losses in dB."""

    launch_dbm: float
    floor_dbm: float
    loss_mean_db: float
    loss_spread_db: float
    noise_db: float = 0.0
    """Spread of one reading; longer averaging reduces it."""
    los_dbm: float = -30.0
    """Loss-of-signal threshold."""
    los_hysteresis_db: float = 2.0
    """Power above the threshold that clears the alarm."""


@dataclass(slots=True, frozen=True)
class Behaviour:
    """Behaviour that differs between models and is not in a public manual."""

    busy: Busy = Busy.REJECT
    preserve_map: bool = True
    """Whether circuits survive a restart."""
    max_sessions: int = 0
    """Sessions per front end; 0 means no limit."""
    idle_logout_s: float = 0.0
    """Time until an idle session is logged out; 0 means never."""
    login_race_s: float = 0.0
    """Time after a login in which commands still get "Login Not Active"."""
    pair_node: str = "pair"
    """Name of the NETCONF list node: ``pairs`` before YANG revision 2017-08-04."""


@dataclass(slots=True, frozen=True)
class Personality:
    """One switch model. The n-th listening address gets the n-th of ``front_ends``.

    ``partner`` maps each output of a two-sided switch to its paired input; it is empty if
    ports pass light both ways.
    """

    name: str
    vendor: str
    model: str
    front_ends: tuple[str, ...]
    sid: str
    serial: str
    firmware: str
    platform: str
    ports: tuple[str, ...]
    timing: SwitchTiming
    light: LightBudget
    behaviour: Behaviour = field(default_factory=Behaviour)
    shape: Mapping[str, int] = field(default_factory=dict)
    """The ``ports`` entry of the file."""
    partner: Mapping[str, str] = field(default_factory=dict)

    @property
    def reciprocal(self) -> bool:
        """Whether one path carries light both ways between any two ports."""
        return "any" in self.shape

    @property
    def fibers(self) -> tuple[str, ...]:
        """The ports that a duplex fiber can use."""
        return tuple(p for p in self.ports if p not in self.partner)

    def fiber(self, port: str) -> str:
        """Return the duplex fiber of ``port``."""
        return self.partner.get(port, port)

    def with_timing(
        self,
        *,
        mirror_s: float | None = None,
        bulk_s: float | None = None,
        link_up_s: float | None = None,
        command_s: float | None = None,
        boot_s: float | None = None,
        read_s: float | None = None,
    ) -> Personality:
        """Return the personality with other times; None keeps a time."""
        given = {
            "mirror_s": mirror_s,
            "bulk_s": bulk_s,
            "link_up_s": link_up_s,
            "command_s": command_s,
            "boot_s": boot_s,
            "read_s": read_s,
        }
        changed = {key: value for key, value in given.items() if value is not None}
        return dataclasses.replace(self, timing=dataclasses.replace(self.timing, **changed))

    def behaving(self, **changes: Any) -> Personality:
        """Return the personality with other behaviour."""
        return dataclasses.replace(self, behaviour=dataclasses.replace(self.behaviour, **changes))


def personalities() -> list[str]:
    """Return the names of all personalities in the package."""
    folder = resources.files(__package__) / "personalities"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_personality(name: str) -> Personality:
    """Load a personality by name, or from a file (as ``ocs probe`` writes it).

    Raises ValueError when it does not exist, or when the file is not a personality.
    """
    if Path(name).suffix in (".yaml", ".json"):
        try:
            text = Path(name).read_text("utf-8")
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror}") from None
        return read_personality(Path(name).stem, text)
    if name not in personalities():
        raise ValueError(f"unknown personality {name!r}; known: {', '.join(personalities())}")
    text = (resources.files(__package__) / "personalities" / f"{name}.yaml").read_text("utf-8")
    return read_personality(name, text)


def read_personality(name: str, text: str) -> Personality:
    """Parse a personality from YAML (or JSON). Raises ValueError when it is invalid."""
    try:
        data: dict[str, Any] = yaml.safe_load(text)
        behaviour = dict(data.get("behaviour", {}))
        if "busy" in behaviour:
            behaviour["busy"] = Busy(behaviour["busy"])
        ports, partner = _ports(data["ports"])
        return Personality(
            name=name,
            vendor=data["vendor"],
            model=data["model"],
            front_ends=tuple(data["front_ends"]),
            sid=data["sid"],
            serial=str(data["serial"]),
            firmware=str(data["firmware"]),
            platform=data.get("platform", ""),
            ports=ports,
            timing=SwitchTiming(**data["timing"]),
            light=LightBudget(**data["light"]),
            behaviour=Behaviour(**behaviour),
            shape=data["ports"],
            partner=partner,
        )
    except KeyError as error:
        raise ValueError(f"{name}: not a personality, {error} is missing") from None
    except (yaml.YAMLError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: not a personality: {error}") from None


def _ports(shape: dict[str, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the ports' names, and for a two-sided switch the paired input of each output."""
    if "any" in shape:
        return tuple(str(n) for n in range(1, shape["any"] + 1)), {}
    if "inputs" in shape:
        inputs = [str(shape["first_input"] + n) for n in range(shape["inputs"])]
        outputs = [str(shape["first_output"] + n) for n in range(shape["outputs"])]
        return (*inputs, *outputs), dict(zip(outputs, inputs, strict=False))
    return (
        tuple(
            f"{bank}.{row}.{column}"
            for bank in range(1, shape["banks"] + 1)
            for row in range(1, shape["rows"] + 1)
            for column in range(1, shape["columns"] + 1)
        ),
        {},
    )

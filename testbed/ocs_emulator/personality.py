"""What an emulated switch is and how fast it is: data files, one per model."""

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
    """What a switch does with a make on a port in use."""

    REJECT = "reject"
    DISPLACE = "displace"


@dataclass(slots=True, frozen=True)
class Timing:
    """Seconds a switch takes."""

    command_s: float
    """One changing command."""
    mirror_s: float
    """One circuit, from command to light."""
    bulk_s: float
    """Longest time of one bulk of circuits."""
    link_up_s: float = 0.0
    """From light to carrier at the far ends."""
    conflict_bulk_s: float = 0.5
    """Longest time of a bulk in which the switch itself had to resolve conflicts."""
    boot_s: float = 1.0
    """From a restart to the first answer."""
    read_s: float = 0.0
    """One command that changes nothing."""


@dataclass(slots=True, frozen=True)
class LightBudget:
    """Powers in dBm, losses in dB."""

    launch_dbm: float
    floor_dbm: float
    loss_mean_db: float
    loss_spread_db: float
    noise_db: float = 0.0
    """Spread of one reading; longer averaging lowers it."""
    los_dbm: float = -30.0
    """Light below this is lost light."""
    los_hysteresis_db: float = 2.0
    """Light has to exceed the threshold by this much before the alarm clears."""


@dataclass(slots=True, frozen=True)
class Behaviour:
    """What differs between models and is not in any public manual."""

    busy: Busy = Busy.REJECT
    preserve_map: bool = True
    """Whether circuits survive a restart."""
    max_sessions: int = 0
    """Sessions per front end; 0 means no limit."""
    idle_logout_s: float = 0.0
    """0 means never."""
    login_race_s: float = 0.0
    """How long after a login commands are still answered "Login Not Active"."""
    pair_node: str = "pair"
    """Name of the NETCONF list node: ``pairs`` before YANG revision 2017-08-04."""


@dataclass(slots=True, frozen=True)
class Personality:
    """One model of switch. The n-th listening address gets the n-th of ``front_ends``.

    ``partner`` maps each output of a two-sided switch to the input whose fiber pair it
    completes; it is empty where a port passes light both ways.
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
    timing: Timing
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
        """The ports a duplex fiber can be plugged into."""
        return tuple(p for p in self.ports if p not in self.partner)

    def fiber(self, port: str) -> str:
        """Return the duplex fiber that ``port`` belongs to."""
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
        """Return the same switch with other times; None keeps a time."""
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
        """Return the same switch with other behaviour."""
        return dataclasses.replace(self, behaviour=dataclasses.replace(self.behaviour, **changes))


def personalities() -> list[str]:
    """Return the names of all personalities that come with the package."""
    folder = resources.files(__package__) / "personalities"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_personality(name: str) -> Personality:
    """Load a personality by name, or from the file of that path (as ``ocs probe`` writes it).

    ValueError when there is none, or when the file is not a personality.
    """
    if Path(name).suffix in (".yaml", ".json"):
        try:
            text = Path(name).read_text("utf-8")
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror}") from None
        return read_personality(Path(name).stem, text)
    if name not in personalities():
        raise ValueError(f"no personality {name!r}; there are: {', '.join(personalities())}")
    text = (resources.files(__package__) / "personalities" / f"{name}.yaml").read_text("utf-8")
    return read_personality(name, text)


def read_personality(name: str, text: str) -> Personality:
    """Read a personality from YAML (or JSON, which is YAML); ValueError when it is not one."""
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
            timing=Timing(**data["timing"]),
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
    """Return the ports' names, and of a two-sided switch the input beside each output."""
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

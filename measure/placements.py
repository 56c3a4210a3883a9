"""Places a number of ranks by name: under one aggregator, half and half, spread, or as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from measure.envelope import Json
from measure.kinds import MeasuredEndpoint, MeasuredSite, SettingsError
from scheduler import ring

NAMED = ("present", "reordered", "local", "hybrid", "remote")
MOST_PLACEMENTS = 16


@dataclass(slots=True, frozen=True)
class RankPlacement:
    """Endpoints in rank order, and the aggregator of each."""

    name: str
    order: tuple[str, ...]
    homes: Mapping[str, str]

    @property
    def crossings(self) -> int:
        """Edges of the ring between two aggregators."""
        return ring.crossings(self.order, self.homes)


def read(given: Json, fabric: MeasuredSite, default: Sequence[str]) -> list[Json]:
    """Return the placements of a setting, each once: names, and homes as ``{"homes": {...}}``.

    It is a list or a text with commas; homes may be written ``homes=gpu0:as0+gpu1:as1``, in rank
    order. Raises SettingsError.
    """
    items = list(default) if given is None else given
    if isinstance(items, str):
        items = items.split(",")
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_PLACEMENTS:
        raise SettingsError("placements", f"is not a list of 1 to {MOST_PLACEMENTS}", _hint())
    known = {one.endpoint for one in fabric.places}
    found: list[Json] = []
    for item in items:
        one = _read(item, known)
        # Homes are in the order of the ranks.
        if not any(one == other and list(_homes(one)) == list(_homes(other)) for other in found):
            found.append(one)
    return found


def place(placement: Json, ranks: int, fabric: MeasuredSite) -> RankPlacement:
    """Return where ``ranks`` ranks go. Raises SettingsError if ports do not suffice.

    ``present`` keeps homes and order, ``reordered`` the homes with the fewest crossings;
    ``local`` is under one aggregator, ``hybrid`` half under each of two, in two blocks;
    ``remote`` is spread over as many aggregators as possible with neighbours under different
    ones. A mapping of homes is used unchanged.
    """
    if isinstance(placement, dict):
        homes: dict[str, str] = dict(placement["homes"])
        _require_ports(homes, fabric)
        name = "homes=" + "+".join(f"{endpoint}:{home}" for endpoint, home in homes.items())
        return RankPlacement(name, tuple(homes), homes)
    name = str(placement)
    if name in ("present", "reordered"):
        homes = {one.endpoint: one.home for one in fabric.places[:ranks]}
        order = tuple(homes) if name == "present" else ring.order(tuple(homes), homes)
        return RankPlacement(name, order, homes)
    homes = _arranged(_sizes(name, ranks, fabric), fabric.places)
    order = ring.order(tuple(homes), homes)
    return RankPlacement(name, _dealt(order, homes) if name == "remote" else order, homes)


def _read(item: Json, known: Collection[str]) -> Json:
    if isinstance(item, str) and item.strip() in NAMED:
        return item.strip()
    homes: Json = None
    if isinstance(item, dict):
        homes = item.get("homes")
    elif isinstance(item, str) and item.strip().startswith("homes="):
        pairs = [pair.partition(":") for pair in item.strip().removeprefix("homes=").split("+")]
        homes = {endpoint: home for endpoint, _, home in pairs if home}
        homes = homes if len(homes) == len(pairs) else None
    if not isinstance(homes, dict) or not homes:
        raise SettingsError("placements", f"{str(item)[:60]!r} is not a placement", _hint())
    for endpoint, home in homes.items():
        if endpoint not in known or not isinstance(home, str):
            raise SettingsError(
                "placements", f"{str(endpoint)[:40]!r} is not an endpoint of the measurement"
            )
    return {"homes": dict(homes)}


def _homes(placement: Json) -> Mapping[str, str]:
    return placement["homes"] if isinstance(placement, dict) else {}


def _hint() -> str:
    return f"one of: {', '.join(NAMED)}, or homes=gpu0:as0+gpu1:as1 in rank order"


def _sizes(name: str, ranks: int, fabric: MeasuredSite) -> dict[str, int]:
    """Return how many ranks each aggregator gets; of equal choices the one with fewest moves."""
    ports = fabric.free_ports
    here = Counter(one.home for one in fabric.places)

    def kept(sizes: Mapping[str, int]) -> int:
        return sum(min(here[home], count) for home, count in sizes.items())

    choices: list[dict[str, int]] = []
    if name == "local":
        choices = [{home: ranks} for home in sorted(ports) if ports[home] >= ranks]
    elif name == "hybrid":
        for pair in combinations(sorted(ports), 2):
            for first, second in (pair, pair[::-1]):
                sizes = {first: (ranks + 1) // 2, second: ranks // 2}
                if all(ports[home] >= count for home, count in sizes.items()):
                    choices.append(sizes)
    else:
        choices = [_spread(ranks, ports)] if sum(ports.values()) >= ranks else []
    if not choices:
        raise SettingsError(
            "placements",
            f"{ranks} ranks do not fit {name}: free ports are "
            + ", ".join(f"{home} {count}" for home, count in sorted(ports.items())),
            "use fewer ranks or another placement",
        )
    return max(choices, key=kept)


def _spread(ranks: int, ports: Mapping[str, int]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for _ in range(ranks):
        open_ = [home for home in sorted(ports) if sizes[home] < ports[home]]
        sizes[min(open_, key=lambda home: sizes[home])] += 1
    return dict(sizes)


def _arranged(sizes: Mapping[str, int], places: Sequence[MeasuredEndpoint]) -> dict[str, str]:
    """Choose the endpoints: those that are there already stay, the rest moves."""
    left = dict(sizes)
    homes: dict[str, str] = {}
    for one in places:
        if left.get(one.home, 0) > 0:
            left[one.home] -= 1
            homes[one.endpoint] = one.home
    for one in places:
        home = next((name for name, count in left.items() if count > 0), None)
        if home is not None and one.endpoint not in homes:
            left[home] -= 1
            homes[one.endpoint] = home
    return homes


def _dealt(order: Sequence[str], homes: Mapping[str, str]) -> tuple[str, ...]:
    """Deal endpoints aggregator by aggregator, so that neighbours are under different ones."""
    stacks: dict[str, list[str]] = {}
    for endpoint in order:
        stacks.setdefault(homes[endpoint], []).append(endpoint)
    dealt: list[str] = []
    while any(stacks.values()):
        dealt += [stack.pop(0) for stack in stacks.values() if stack]
    return tuple(dealt)


def _require_ports(homes: Mapping[str, str], fabric: MeasuredSite) -> None:
    for home, count in Counter(homes.values()).items():
        have = fabric.free_ports.get(home, 0)
        if count > have:
            raise SettingsError(
                "placements",
                f"{count} endpoints do not fit under {home}: it has {have} free ports",
                "name other aggregators",
            )

"""Provides racks to plan on: the paper's six GPUs, and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Policy, Site, Spread, SpreadBy
from scheduler.occupancy import capacities

PAPER_SERVERS = {
    "gpu0": "srv0",
    "gpu1": "srv0",
    "gpu2": "srv1",
    "gpu3": "srv1",
    "gpu4": "srv2",
    "gpu5": "srv3",
}
PAPER_HOMES = {
    "gpu0": "as0",
    "gpu1": "as0",
    "gpu2": "as1",
    "gpu3": "as1",
    "gpu4": "as0",
    "gpu5": "as1",
}
PAPER_SITE = Site(
    name="paper",
    endpoints=tuple(Endpoint(n, ocs="ocs0", server=s) for n, s in PAPER_SERVERS.items()),
    aggregators=(Aggregator("as0", {"ocs0": 4}), Aggregator("as1", {"ocs0": 4})),
)
SPREADS = (
    None,
    None,
    Spread(SpreadBy.SERVER, 1),
    Spread(SpreadBy.AGGREGATOR, 1),
    Spread(SpreadBy.AGGREGATOR, 2),
)
RED = Job("red", ("gpu0", "gpu2", "gpu1", "gpu3"))
BLUE = Job("blue", ("gpu4", "gpu5"))
CASE_A = (RED, BLUE)
CASE_B = (Job("red", ("gpu0", "gpu2", "gpu1")), Job("blue", ("gpu3", "gpu4", "gpu5")))


def paper(
    *jobs: Job,
    homes: Mapping[str, str | None] = PAPER_HOMES,
    unavailable: Sequence[str] = (),
) -> Fabric:
    """Return the paper's rack with these jobs on it."""
    return Fabric(PAPER_SITE, dict(homes), jobs, frozenset(unavailable), epoch=7)


def uniform(aggregators: int, ports: int, endpoints: int, switches: int = 1) -> Fabric:
    """Return an idle site whose endpoints fill the aggregators one after the other."""
    site = Site(
        "uniform",
        tuple(Endpoint(f"e{i}", ocs=f"ocs{i % switches}") for i in range(endpoints)),
        tuple(
            Aggregator(f"as{a}", {f"ocs{k}": ports // switches for k in range(switches)})
            for a in range(aggregators)
        ),
    )
    return Fabric(site, {f"e{i}": f"as{i // ports}" for i in range(endpoints)})


def scattered() -> Fabric:
    """Return six endpoints on two aggregators with one job on both."""
    names = [f"g{i}" for i in range(6)]
    site = Site(
        "six",
        tuple(Endpoint(n, ocs="o") for n in names),
        (Aggregator("a", {"o": 3}), Aggregator("b", {"o": 3})),
    )
    homes = {n: "ab"[i % 2] for i, n in enumerate(names)}
    return Fabric(site, homes, (Job("red", ("g0", "g1")),))


@st.composite
def fabrics(draw: st.DrawFn, most_endpoints: int = 16, most_aggregators: int = 4) -> Fabric:
    """Draw a fabric: several switches, dark, fixed, pinned and lost endpoints, held ports."""
    switches = [f"ocs{k}" for k in range(draw(st.integers(1, 2)))]
    aggregators = tuple(
        Aggregator(f"as{a}", {ocs: draw(st.integers(0, 4)) for ocs in switches}, fixed_ports=1)
        for a in range(draw(st.integers(1, most_aggregators)))
    )
    endpoints, homes = [], {}
    free = capacities(Fabric(Site("empty", (), aggregators), {}))
    for index in range(draw(st.integers(1, most_endpoints))):
        name, server = f"e{index}", f"srv{index // 2}"
        if draw(st.integers(0, 7)) == 0:
            fixed = draw(st.sampled_from(aggregators)).name
            endpoints.append(Endpoint(name, fixed=fixed, server=server))
            continue
        ocs = draw(st.sampled_from(switches))
        endpoints.append(Endpoint(name, ocs=ocs, server=server))
        open_ = [slot for slot, n in free.items() if slot[1] == ocs and n > 0]
        if open_ and draw(st.integers(0, 7)) > 0:
            slot = draw(st.sampled_from(open_))
            free[slot] -= 1
            homes[name] = slot[0]
    site = Site("random", tuple(endpoints), aggregators)
    jobs, lost = draw(_jobs(endpoints)), draw(_some(endpoints))
    some = draw(st.booleans())
    held = {slot: draw(st.integers(0, n)) for slot, n in free.items() if some}
    return Fabric(site, homes, jobs, lost, held_ports=held)


@st.composite
def crowded(draw: st.DrawFn, most_aggregators: int = 3, ports: int = 2) -> Fabric:
    """Draw a site whose ports are all taken, with scattered jobs."""
    aggregators = draw(st.integers(2, most_aggregators))
    fabric = uniform(aggregators, ports, aggregators * ports)
    homes = draw(st.permutations(list(fabric.homes.values())))
    jobs = draw(_jobs(list(fabric.site.endpoints)))
    return Fabric(fabric.site, dict(zip(fabric.homes, homes, strict=True)), jobs)


@st.composite
def small_switched(draw: st.DrawFn) -> Fabric:
    """Draw eight endpoints on two aggregators and two switches, every port taken."""
    fabric = uniform(2, 4, 8, switches=2)
    homes = dict(fabric.homes)
    for switch in range(2):
        names = [f"e{i}" for i in range(switch, 8, 2)]
        homes.update(zip(names, draw(st.permutations([homes[n] for n in names])), strict=True))
    return Fabric(fabric.site, homes, draw(_jobs(list(fabric.site.endpoints))))


@st.composite
def _jobs(draw: st.DrawFn, endpoints: list[Endpoint]) -> tuple[Job, ...]:
    names = draw(st.permutations([e.name for e in endpoints]))
    jobs: list[Job] = []
    start = 0
    while start < len(names) and draw(st.integers(0, 5)) > 0:
        size = draw(st.integers(1, 5))
        members = tuple(names[start : start + size])
        start += size
        jobs.append(
            Job(
                f"job{len(jobs)}",
                members,
                policy=draw(st.sampled_from(Policy)),
                pinned=draw(st.integers(0, 5)) == 0,
                weight=draw(st.sampled_from([1.0, 1.0, 1.0, 2.5, 0.0])),
                spread=draw(st.sampled_from(SPREADS)),
            )
        )
    return tuple(jobs)


@st.composite
def _some(draw: st.DrawFn, endpoints: list[Endpoint]) -> frozenset[str]:
    lost = draw(st.sets(st.sampled_from([e.name for e in endpoints]), max_size=2))
    return frozenset(lost) if draw(st.booleans()) else frozenset()

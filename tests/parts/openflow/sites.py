"""Sites for the OpenFlow tests: endpoints on aggregators that are joined by uplinks."""

from controller.devices.aggregators import AttachPoint
from sitefile.model import AggregatorCable, CabledSite, EndpointCable, Fiber, Port, Uplink

ACCESS_PORTS = 8
UPLINK_BASE = 100


def make_site(
    aggregators: int = 2,
    endpoints: int = 6,
    links: tuple[tuple[int, int], ...] = ((0, 1),),
    listen: str = "127.0.0.1:0",
    netns: str | None = None,
) -> CabledSite:
    """Aggregators ``as0..`` with access ports 1..8 and one uplink port per entry of ``links``."""
    uplinks = tuple(
        Uplink(Port(f"as{a}", f"{UPLINK_BASE + n}"), Port(f"as{b}", f"{UPLINK_BASE + n}"))
        for n, (a, b) in enumerate(links)
    )
    return CabledSite(
        name="test",
        servers=(),
        endpoints=tuple(
            EndpointCable(
                name=f"gpu{n}",
                server=f"server{n}",
                ip=f"10.77.0.{n + 1}",
                prefix_len=24,
                fibers=(
                    Fiber(f"e-gpu{n}", f"02:00:00:00:01:{n + 1:02x}", Port("ocs0", f"1.1.{n + 1}")),
                ),
            )
            for n in range(endpoints)
        ),
        aggregators=tuple(
            AggregatorCable(
                name=f"as{n}",
                dpid=0xA0 + n,
                fibers={p: Port("ocs0", f"2.{n}.{p}") for p in range(1, ACCESS_PORTS + 1)},
                fixed={},
            )
            for n in range(aggregators)
        ),
        switches=(),
        uplinks=uplinks,
        homes={},
        subnet="10.77.0.0/24",
        openflow_listen=listen,
        openflow_netns=netns,
    )


def attach(*places: tuple[str, str, int]) -> dict[str, AttachPoint]:
    """``attach(("gpu0", "as0", 1), ...)``."""
    return {endpoint: AttachPoint(aggregator, port) for endpoint, aggregator, port in places}

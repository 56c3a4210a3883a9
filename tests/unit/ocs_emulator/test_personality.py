import pytest

from testbed.ocs_emulator import Emulator, load_personality, personalities
from testbed.ocs_emulator.command import parse_addresses
from testbed.ocs_emulator.emulator import FRONT_ENDS


@pytest.mark.parametrize("name", personalities())
def test_every_personality_loads_and_its_front_ends_exist(name: str) -> None:
    personality = load_personality(name)
    assert set(personality.front_ends) <= set(FRONT_ENDS)
    assert len(set(personality.ports)) == len(personality.ports)


def test_the_s320_has_320_ports() -> None:
    assert len(load_personality("calient-s320").ports) == 320


def test_unknown_personality_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="calient-s320"):
        load_personality("../secrets")


def test_times_can_be_changed() -> None:
    timing = load_personality("calient-s320").with_timing(mirror_s=1.0).timing
    assert (timing.mirror_s, timing.bulk_s) == (1.0, 0.2)


def test_addresses() -> None:
    assert parse_addresses("127.0.0.1:3082,[::1]:0") == [("127.0.0.1", 3082), ("::1", 0)]
    for bad in ("3082", "host:", "host:99999", "host:x"):
        with pytest.raises(ValueError, match="host:port"):
            parse_addresses(bad)


async def test_more_addresses_than_front_ends_are_refused() -> None:
    personality = load_personality("calient-s320")
    with pytest.raises(ValueError, match="calient-tl1-prompt"):
        Emulator(personality, [("127.0.0.1", 0)] * 3)

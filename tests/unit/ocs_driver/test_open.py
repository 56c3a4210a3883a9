import pytest

import ocs_driver
from ocs_driver import OcsAddress, OcsError, OcsLogin
from ocs_driver.calient.driver import CalientTl1Driver
from ocs_driver.converge import ConvergingDriver
from ocs_driver.grid import Grid, GridDriver

CREDENTIAL = "x"


def test_address_parts() -> None:
    address = OcsAddress.parse("calient+tl1://ad%40min@[::1]:3082")
    assert (address.scheme, address.host, address.port) == ("calient+tl1", "::1", 3082)
    assert address.user == "ad@min"
    assert str(address) == "calient+tl1://[::1]:3082"


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:3082", "calient+tl1://", "calient+tl1://h:port", "calient+tl1://h:0"),
        *("calient+tl1://h:99999", "calient+tl1://fd00::1:3082", "calient+tl1://fd00::1"),
    ],
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(OcsError, match="bad_url"):
        OcsAddress.parse(url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(OcsError, match="password_in_url") as caught:
        ocs_driver.open("calient+tl1://admin:hunter2@ocs0:3082")
    assert "hunter2" not in str(caught.value)


def test_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(OcsError, match=r"calient\+tl1"):
        ocs_driver.open("telepathy://admin@ocs0")


@pytest.mark.parametrize("scheme", sorted(ocs_driver.DRIVERS))
async def test_the_name_of_a_switch_is_an_address(scheme: str) -> None:
    driver = ocs_driver.open(f"{scheme}://admin@[fd00::1]:3082", password=CREDENTIAL)
    assert isinstance(driver, ConvergingDriver)
    assert driver.name == "[fd00::1]:3082"


async def test_driver_by_scheme() -> None:
    driver = ocs_driver.open("calient+tl1://admin@ocs0", password=CREDENTIAL)
    assert isinstance(driver, CalientTl1Driver)
    assert driver.name == "ocs0:3082"


def test_credentials_are_needed() -> None:
    with pytest.raises(OcsLogin, match="LIGHTLOOM_OCS_PASSWORD"):
        ocs_driver.open("calient+tl1://admin@ocs0")


def test_group_cannot_carry_commands() -> None:
    with pytest.raises(OcsError, match="bad_group"):
        ocs_driver.open("calient+tl1://admin@ocs0", password=CREDENTIAL, group="a;DLT-CRS")


@pytest.mark.parametrize("scheme", sorted(ocs_driver.DRIVERS))
async def test_every_scheme_opens_and_refuses_strange_options(scheme: str) -> None:
    url = f"{scheme}://admin@ocs0"
    assert ocs_driver.open(url, password=CREDENTIAL)
    assert isinstance(ocs_driver.open(f"{url}?ports=2x2x8", password=CREDENTIAL), GridDriver)
    for query in (
        "frob=1",
        "ports=2x2",
        "ports=0x1x1",
        "ports=2x2x8@",
        "personality=/nowhere/at/all.json",
    ):
        with pytest.raises(OcsError):
            ocs_driver.open(f"{url}?{query}", password=CREDENTIAL)


def test_a_grid_counts_ports() -> None:
    grid = Grid.parse("2x2x8")
    numbers = [grid.number(p) for p in ("1.1.1", "1.1.6", "2.1.1", "2.2.4")]
    assert numbers == ["1", "6", "17", "28"]
    assert [grid.name(n) for n in numbers] == ["1.1.1", "1.1.6", "2.1.1", "2.2.4"]
    assert grid.name("33") == "33"
    with pytest.raises(OcsError, match="bad_port"):
        grid.number("3.1.1")


def test_a_grid_may_begin_anywhere() -> None:
    grid = Grid.parse("2x2x8@10001")
    assert grid.number("2.1.1") == "10017"
    assert grid.name("10017") == "2.1.1"
    assert grid.name("1") == "1"
    assert grid.name("20017") == "20017"

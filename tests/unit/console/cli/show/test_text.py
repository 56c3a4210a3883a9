"""How values are written, and host lists read."""

from __future__ import annotations

from datetime import datetime

import pytest

from console.cli.ask.hostlist import expand
from console.cli.errors import CliError
from console.cli.show import text
from console.cli.show.describe import value_text


@pytest.mark.parametrize(
    ("bps", "expected"),
    [(None, "-"), (0, "0 bit/s"), (999, "999 bit/s"), (1e6, "1 Mbit/s"), (113.6e6, "114 Mbit/s")],
)
def test_rates(bps: float | None, expected: str) -> None:
    assert text.rate(bps) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(None, "-"), (12 * 2**30, "12 GiB"), (1536, "1.5 KiB"), (2**60, "1048576 TiB")],
)
def test_sizes(count: float | None, expected: str) -> None:
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (-3, "0s"), (59.9, "59s"), (192, "3m12s"), (7260, "2h01m"), (90000, "1d01h")],
)
def test_ages(seconds: float | None, expected: str) -> None:
    assert text.age(seconds) == expected


def test_the_rest() -> None:
    assert text.spread({"as1": 2, "as0": 1}) == "as0:1 as1:2"
    assert text.spread(None) == "-"
    assert text.percent(0.375) == "38 %"
    assert text.names(["gpu0", None]) == "gpu0,-"
    assert text.sparkline([0, None, 50, 100]) == "▁ ▅█"
    assert text.sparkline([0, 0]) == "▁▁"
    assert text.plain("a\x1b[31m\n") == "a\\x1b[31m\\n"
    assert (text.plural(1, "move"), text.plural(2, "move")) == ("1 move", "2 moves")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gpu0", ["gpu0"]),
        ("gpu0,gpu3", ["gpu0", "gpu3"]),
        ("gpu[0-2,5],spare1", ["gpu0", "gpu1", "gpu2", "gpu5", "spare1"]),
        ("r[08-10]n", ["r08n", "r09n", "r10n"]),
    ],
)
def test_host_lists(given: str, expected: list[str]) -> None:
    assert expand(given) == expected


@pytest.mark.parametrize("given", ["", ",", "gpu[", "gpu[a]", "gpu[3-1]", "g[0-99999999]", "a b"])
def test_malformed_host_lists(given: str) -> None:
    with pytest.raises(CliError) as caught:
        expand(given)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("home", None, "dark"),
        ("reason", None, "-"),
        ("rx_bps", 0.0, "0 bit/s"),
        ("memory_bytes", 1024, "1 KiB"),
        ("utilisation", 0.5, "50 %"),
        ("took_s", 0.0051, "0.005 s"),
        ("dark_time_s", {"gpu0": 0.174}, "gpu0=0.174"),
        ("exit_codes", [0, None], "0,-"),
        ("homes", ["as0", None], "as0,dark"),
        ("connected", False, "no"),
        ("command", ["python3", "x.py"], "python3 x.py"),
        ("finished_at", 0.0, "1970"),
    ],
)
def test_fields_of_describe(key: str, value: object, expected: str) -> None:
    assert value_text(key, value).startswith(expected)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("90s", 90), ("0.5", 0.5), ("15m", 900), ("1h30m", 5400), ("2d", 172800)],
)
def test_durations(written: str, seconds: float) -> None:
    assert text.duration_s(written) == seconds


@pytest.mark.parametrize("written", ["", "0", "-5", "soon", "1x", "h", "1m2h"])
def test_bad_durations_name_the_form(written: str) -> None:
    with pytest.raises(CliError, match="is not a duration above 0") as caught:
        text.duration_s(written)
    assert "1h30m" in caught.value.hint


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        ("10m", 99_400.0),
        ("1h30m", 94_600.0),
        ("365d", 0.0),
        ("2026-01-01T00:00:00Z", 1_767_225_600.0),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600.0),
        ("2026-01-31", datetime(2026, 1, 31).timestamp()),
    ],
)
def test_a_moment_is_a_time_or_so_long_ago(word: str, seconds: float) -> None:
    assert text.moment_s(word, 100_000.0) == seconds


@pytest.mark.parametrize("word", ["", "0", "soon", "-5m", "2026-13-01", "0001-01-01"])
def test_other_texts_are_no_moments(word: str) -> None:
    with pytest.raises(CliError) as refused:
        text.moment_s(word, 100_000.0)
    assert "10m" in refused.value.hint


def test_an_instant_is_in_utc_with_milliseconds() -> None:
    assert text.instant(1_767_225_600.1239) == "2026-01-01T00:00:00.123Z"

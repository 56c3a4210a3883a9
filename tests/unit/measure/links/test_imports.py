"""Files of OSU's micro-benchmarks and of perftest 4.5, in their own formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.kinds import Importing, SettingsError
from measure.links.imports import MEBI, read_osu, read_perftest
from measure.links.kind import LINKS
from measure.links.model import tells_paths

HERE = Path(__file__).parent


def text(name: str) -> str:
    return (HERE / name).read_text()


def test_latency_of_osu_is_in_microseconds() -> None:
    body = read_osu(text("osu_latency.txt"))
    assert [row["size"] for row in body.rows] == [1, 2, 4, 1024, 65536, 4194304]
    assert body.rows[3]["latency_s"] == {
        **dict.fromkeys(("ci", "min", "max")),
        "median": pytest.approx(2.46e-6),
        "n": 1,
    }
    assert body.rows[3]["bandwidth"] is None
    assert (body.tool.name, body.tool.version) == ("osu", "7.4")


def test_bandwidth_of_osu_is_in_millions_of_bytes() -> None:
    body = read_osu(text("osu_bw.txt"))
    assert body.rows[-1]["bandwidth"]["median"] == pytest.approx(12206.02e6)
    assert body.rows[-1]["latency_s"] is None
    assert body.rows[-1]["test"] == "MPI-CUDA Bandwidth"
    assert body.summary["bandwidth"] == pytest.approx(12206.02e6)


def test_latency_of_perftest_is_the_typical_one() -> None:
    body = read_perftest(text("ib_send_lat.txt"))
    assert [row["size"] for row in body.rows] == [2, 4096]
    told = body.rows[0]["latency_s"]
    assert [told[name] for name in ("median", "min", "max")] == pytest.approx(
        [1.01e-6, 0.98e-6, 4.31e-6]
    )
    assert body.rows[0]["test"] == "Send Latency"


@pytest.mark.parametrize(
    ("heading", "factor"), [("MB/sec", MEBI), ("MiB/sec", MEBI), ("Gb/sec", 1e9 / 8)]
)
def test_bandwidth_of_perftest_has_the_unit_of_its_heading(heading: str, factor: float) -> None:
    body = read_perftest(text("ib_write_bw.txt").replace("MB/sec", heading))
    told = body.rows[1]["bandwidth"]
    assert told["median"] == pytest.approx(11661.90 * factor)
    assert told["max"] == pytest.approx(11662.31 * factor)


def test_both_tests_of_one_file_are_read() -> None:
    assert len(read_osu(text("osu_latency.txt") + text("osu_bw.txt")).rows) == 6 + 4
    both = text("ib_send_lat.txt") + text("ib_write_bw.txt")
    assert {row["test"] for row in read_perftest(both).rows} == {"Send Latency", "RDMA_Write BW"}


def test_an_import_is_shown_and_is_no_model_of_paths() -> None:
    assert isinstance(LINKS, Importing) and set(LINKS.imports) == {"osu", "perftest"}
    body = read_perftest(text("ib_write_bw.txt"))
    shown = LINKS.table({"rows": body.rows, "groups": [], "anomalies": [], "fits": []})
    assert "RDMA_Write BW" in shown and "12228.4 MB/s" in shown
    assert not tells_paths({"tool": "perftest"})


@pytest.mark.parametrize("reader", [read_osu, read_perftest])
@given(
    words=st.lists(
        st.sampled_from(
            [
                *"#[]0 \n",
                "nan",
                "1e999",
                "#bytes #iterations",
                " x[MB/sec]",
                "# OSU MPI Latency Test v",
                "\n1 1",
                " Latency Test\n",
                "BW average[MB/sec]",
                "9" * 30,
                "-1",
            ]
        )
    )
)
def test_a_file_of_any_form_is_read_or_refused(reader: object, words: list[str]) -> None:
    assert callable(reader)
    try:
        body = reader("".join(words))
    except SettingsError:
        return
    assert all(row["size"] > 0 for row in body.rows)

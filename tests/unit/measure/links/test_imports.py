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


MULTIPLE = """# OSU MPI Multiple Bandwidth / Message Rate Test v5.7
# [ pairs: 4 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1                    1348.55     1348549706.72
"""
NON_BLOCKING = """# OSU MPI-CUDA Non-blocking Allreduce Latency Test v7.5
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Datatype: MPI_INT.
# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
4                      11.09              6.10              5.18              3.46
"""
FULL = """# OSU MPI Allreduce Latency Test v7.4
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
1024                   30.50             29.00             33.25        1000              Pass
2048                   61.00             58.00             66.50        1000              {}
"""


def test_a_column_is_chosen_by_its_heading_and_unit() -> None:
    (row,) = read_osu(MULTIPLE).rows
    assert row["bandwidth"]["median"] == pytest.approx(1348.55e6)
    assert row["latency_s"] is None
    (row,) = read_osu(NON_BLOCKING).rows
    assert row["latency_s"]["median"] == pytest.approx(5.18e-6), "not the overall time"
    wide = read_osu(FULL.format("Pass"))
    told = wide.rows[0]["latency_s"]
    assert [told[name] for name in ("median", "min", "max")] == pytest.approx(
        [30.5e-6, 29e-6, 33.25e-6]
    )
    assert not wide.invalid_because


@pytest.mark.parametrize(
    ("title", "heading", "row"),
    [
        ("OpenSHMEM Put Message Rate", "# Size        Messages/s", "1    1348549706.72"),
        ("MPI Atomics", "# Size    Million ops/s      Latency(ms)", "1     1.5    2.5"),
        ("MPI Latency", "# Size    Latency (ns)", "1    1620"),
        ("MPI Bandwidth", "# Size    Bandwidth (GB/s)", "1    1.5"),
        ("MPI Non-blocking Barrier Latency", "# Size     Overall(us)    Overlap(%)", "1   2  3"),
    ],
)
def test_a_benchmark_of_other_columns_is_refused_with_them(
    title: str, heading: str, row: str
) -> None:
    for before in ("", text("osu_latency.txt")):
        with pytest.raises(SettingsError, match="no column of latency") as told:
            read_osu(f"{before}# OSU {title} Test v7.4\n{heading}\n{row}\n")
        assert title in str(told.value)


def test_figures_without_a_heading_are_none() -> None:
    with pytest.raises(SettingsError, match="no rows"):
        read_osu("# OSU MPI Latency Test v7.4\n1   1.62\n")
    with pytest.raises(SettingsError, match="no rows"):
        read_osu("# OSU MPI Latency Test v7.4\n# Size   Latency (us)\n1   1.62   7\n")


@pytest.mark.parametrize(
    "said", [FULL.format("Fail"), FULL.format("Pass") + "DATA VALIDATION ERROR: osu_allreduce\n"]
)
def test_a_failed_validation_makes_the_measurement_invalid(said: str) -> None:
    body = read_osu(said)
    assert len(body.rows) == 2
    assert body.invalid_because == ("data were wrong",)


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

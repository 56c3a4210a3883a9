"""Tests that no file changes the value of a plain word without a word about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.schema.submit.file import load_job
from sitefile import SiteFileError, load_site, load_state
from sitefile.yaml_io import load_mapping
from tests.parts.sites import PAPER

UNCLEAR = (
    *("0022", "010", "-010", "+10", "0b11", "0x10", "1_000", "0189", "-0", "1:30"),
    *("1_0.5", "01.5", ".5", "1.", "+1.5", "1:30.5", ".inf", "-.inf", ".nan", "1.0e+400", "01e2"),
    "12:34:56:12:34:56",
)
"""Words that YAML 1.1, YAML 1.2, JSON and Python do not read alike as numbers."""
NUMBERS = ("0", "7", "-7", "1.5", "-0.25", "1.50", "1.0e+3")
TEXTS = ("1e", "0x", "2026-01-01", "2026-1-1", "1.2.3", "10GiB", "inf", "nan", "<<", "a:b", "0o17")


def loaded(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "file.yaml"
    file.write_text(text, encoding="utf-8")
    return load_mapping(file, unclear=False)


def job(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return load_job(file)


def site(folder: Path, pattern: str, line: str) -> Any:
    """Load the paper's site with the first line that matches ``pattern`` replaced."""
    text = PAPER.read_text(encoding="utf-8")
    assert re.search(pattern, text)
    file = folder / "site.yaml"
    file.write_text(re.sub(pattern, line, text, count=1), encoding="utf-8")
    return load_site(file)


@pytest.mark.parametrize("word", UNCLEAR)
def test_a_variable_keeps_its_text_and_a_number_is_refused(word: str, tmp_path: Path) -> None:
    assert job(tmp_path, f"env: {{WORD: {word}}}\nresources: {{gpus: 1}}")["env"] == {"WORD": word}
    for number in (
        "priority: {}",
        "resources: {{gpus: {}}}",
        "resources: {{gpus: 1, memory: {}}}",
        "limits: {{cpu: {}}}",
        "limits: {{io: {}}}",
        "dark_tolerance_s: {}",
        "spares: {}",
        "checkpoint: {{local: {{size: 1GiB, keep: {}}}}}",
        "checkpoint: {{local: {{size: {}}}}}",
    ):
        with pytest.raises(SiteFileError) as told:
            job(tmp_path, number.format(word))
        assert repr(word) in str(told.value), number
        assert "fix: put it in quotes" in str(told.value)
    with pytest.raises(SiteFileError, match="in quotes"):
        loaded(tmp_path, f"a: [1, {{b: {word}}}]")
    with pytest.raises(SiteFileError, match=r"line 1.*in quotes"):
        job(tmp_path, f"env: {{{word}: a}}")


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "true", "False"])
def test_a_word_that_means_true_or_false_is_no_number(word: str, tmp_path: Path) -> None:
    text = PAPER.read_text(encoding="utf-8")
    file = tmp_path / "site.yaml"
    for section in (
        f"network: {{dscp: {word}}}",
        f"queue: {{max_waiting: {word}}}",
        f"queue: {{backfill_depth: {word}}}",
        f"logs: {{keep: {word}}}",
        f"logs: {{total: {word}}}",
        f"users: {{uid: {word}}}",
        f"projects: [{{name: a, quota: {word}}}]",
    ):
        file.write_text(f"{text}\n{section}\n", encoding="utf-8")
        with pytest.raises(SiteFileError, match="true and false are not numbers"):
            load_site(file)


@pytest.mark.parametrize("word", ["01500", "1_500", "0x5dc", "25:00", "+1500", "01900"])
def test_a_site_file_refuses_unclear_numbers(word: str, tmp_path: Path) -> None:
    for section in (
        f"network: {{mtu: {word}}}",
        f"queue: {{max_waiting: {word}}}",
        f"logs: {{keep: {word}}}",
        f"logs: {{total: {word}}}",
        f"recovery: {{lost_after: {word}}}",
        f"emulation: {{access_bps: {word}}}",
    ):
        key = section.partition(":")[0]
        text = PAPER.read_text(encoding="utf-8")
        kept = "\n".join(
            line for line in text.splitlines() if not line.startswith(key) or key != "emulation"
        )
        file = tmp_path / "site.yaml"
        file.write_text(f"{kept}\n{section}\n", encoding="utf-8")
        with pytest.raises(SiteFileError) as told:
            load_site(file)
        assert repr(word) in str(told.value), section


def test_a_datapath_id_may_be_hexadecimal_and_nothing_else(tmp_path: Path) -> None:
    pattern = r"dpid: *[0-9a-fx]+"
    found = site(tmp_path, pattern, "dpid: 0x00000000000000fe")
    assert 0xFE in {a.dpid for a in found.aggregators}
    for word in ("0000000000000010", "0b11", "1_0", "1:30", "-0x1"):
        with pytest.raises(SiteFileError, match=r"dpid.*in quotes"):
            site(tmp_path, pattern, f"dpid: {word}")


def test_a_mac_of_digits_only_is_text(tmp_path: Path) -> None:
    found = site(tmp_path, r'mac: *"?[0-9a-f:]+"?', "mac: 12:34:56:12:34:56")
    assert "12:34:56:12:34:56" in {e.mac for e in found.endpoints}


@pytest.mark.parametrize("word", ["010", "1_0", "0x1", "1:30"])
def test_a_state_file_refuses_unclear_numbers(word: str, tmp_path: Path) -> None:
    file = tmp_path / "state.yaml"
    for ports, weight in ((word, "1"), ("4", word)):
        file.write_text(
            "site:\n"
            f"  aggregators: [{{name: a, ports: {{ocs: {ports}}}}}]\n"
            "  endpoints: [{name: g0, ocs: ocs}]\n"
            f"jobs: [{{name: j, endpoints: [g0], weight: {weight}}}]\n",
            encoding="utf-8",
        )
        with pytest.raises(SiteFileError, match=f"'{re.escape(word)}' is a number to some"):
            load_state(file)


@pytest.mark.parametrize("word", NUMBERS)
def test_numbers_that_every_reader_reads_alike(word: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"a: {word}") == {"a": float(word)}


@pytest.mark.parametrize("word", TEXTS)
def test_other_words_are_their_text(word: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"a: {word}") == {"a": word}
    assert loaded(tmp_path, f"a: '{word}'") == {"a": word}


@given(st.from_regex(r"[-+]?[0-9][0-9_.:xXoObBeEaf]{0,12}", fullmatch=True))
def test_no_word_is_altered(tmp_path_factory: pytest.TempPathFactory, word: str) -> None:
    """A variable's value is the word itself, or it is refused."""
    folder = tmp_path_factory.getbasetemp()
    try:
        found = job(folder, f"env: {{WORD: {word}}}\nresources: {{gpus: 1}}")["env"]
    except SiteFileError:
        return
    assert found == {"WORD": word}


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "Infinity"])
def test_no_number_is_infinite(word: str, tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match="cpu"):
        job(tmp_path, f"resources: {{gpus: 1}}\nlimits: {{cpu: {word}}}")

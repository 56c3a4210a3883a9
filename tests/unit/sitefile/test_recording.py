"""Tests how much of the communication of jobs is recorded: of the site's, and of one job's."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.schema.submit.file import load_job
from scheduler.queue.model import Preemption
from sitefile import SiteFileError, load_site
from tests.parts.sites import PAPER
from tests.unit.sitefile.written import written


def test_by_default_calls_are_counted() -> None:
    assert load_site(PAPER).recording == "counts"


@pytest.mark.parametrize("word", ["counts", "full", "off"])
def test_a_site_chooses(tmp_path: Path, word: str) -> None:
    assert load_site(written(tmp_path, recording=word)).recording == word


def test_the_word_off_needs_no_quotes(tmp_path: Path) -> None:
    """YAML 1.1 reads it as false."""
    file = written(tmp_path, queue={"preemption": False}, recording=False)
    assert "recording: false" in file.read_text()
    assert load_site(file).recording == "off"
    assert load_site(file).scheduling.queue.preemption is Preemption.OFF
    job = tmp_path / "job.yaml"
    job.write_text("name: red\nrecord: off\n")
    assert load_job(job)["record"] == "off"


@pytest.mark.parametrize("word", ["on", True, "all", 1, None, ["full"]])
def test_other_words_are_refused(tmp_path: Path, word: object) -> None:
    with pytest.raises(SiteFileError, match="recording"):
        load_site(written(tmp_path, recording=word))

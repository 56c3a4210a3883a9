"""Some seconds of coverage-guided fuzzing of what a worker's profiler may answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzing import PATIENCE_S, fuzz
from tests.parts.agent.profiles import made

RUNS = 20_000


@pytest.mark.timeout(PATIENCE_S + 60)
def test_no_answer_of_a_worker_breaks_the_decoder(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    reduce, wait = "a:CollectiveReduceV2", "b:IteratorGetNext"
    (corpus / "steps").write_bytes(made((reduce, 1, 9), (wait, 2, 3), ("c:MatMul", 4, 12)))
    (corpus / "absolute").write_bytes(made((reduce, 1, 9), absolute=True))
    fuzz("profiler_answers", corpus, RUNS)

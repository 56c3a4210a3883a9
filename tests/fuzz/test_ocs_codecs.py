"""A few seconds of coverage-guided fuzzing in every run; hours by hand (see ocs_codecs).

Always the same inputs: what a seed of the day finds is not the fault of the change under test.
``LIGHTLOOM_EXPLORE=1`` looks for new ones.
"""

from pathlib import Path

import pytest

from tests.fuzz.fuzzing import PATIENCE_S, fuzz
from tests.parts.ocs import transcripts

RUNS = 8_000
"""All of it takes ten seconds on a quiet machine."""


@pytest.mark.timeout(PATIENCE_S + 60)
def test_no_reply_of_a_switch_breaks_a_codec(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    tl1 = (transcripts.LOGIN, transcripts.IDENTITY, transcripts.CIRCUITS, transcripts.DENIAL)
    for number, seed in enumerate((*tl1, transcripts.ALARM)):
        (corpus / f"tl1-{number}").write_bytes(b"\x00" + seed)
    (corpus / "scpi").write_bytes(b'\x60(@1,2),(@3,4);-222, "no"\r\n')
    (corpus / "xml").write_bytes(b"\xff<a><pair><ingress>1</ingress><egress>2</egress></pair></a>")
    fuzz("ocs_codecs", corpus, RUNS)

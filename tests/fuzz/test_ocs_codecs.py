"""A few seconds of coverage-guided fuzzing in every run; hours by hand (see ocs_codecs).

Always the same inputs: what a seed of the day finds is not the fault of the change under test.
``LIGHTLOOM_EXPLORE=1`` looks for new ones.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ocs_driver import transcripts

RUNS = 8_000
SEED = 20260101
PATIENCE_S = 600
"""All of it takes ten seconds on a quiet machine."""
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(PATIENCE_S + 60)
def test_no_reply_of_a_switch_breaks_a_codec(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    tl1 = (transcripts.LOGIN, transcripts.IDENTITY, transcripts.CIRCUITS, transcripts.DENIAL)
    for number, seed in enumerate((*tl1, transcripts.ALARM)):
        (corpus / f"tl1-{number}").write_bytes(b"\x00" + seed)
    (corpus / "scpi").write_bytes(b'\x60(@1,2),(@3,4);-222, "no"\r\n')
    (corpus / "xml").write_bytes(b"\xff<a><pair><ingress>1</ingress><egress>2</egress></pair></a>")
    limits = (f"-runs={RUNS}", "-max_len=4096", "-rss_limit_mb=1024", f"-timeout={PATIENCE_S}")
    seed = () if os.environ.get("LIGHTLOOM_EXPLORE") else (f"-seed={SEED}",)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.ocs_codecs", *limits, *seed, str(corpus)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "0"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    done = re.search(r"Done (\d+) runs", ran.stderr)
    assert done is not None
    assert int(done[1]) >= RUNS

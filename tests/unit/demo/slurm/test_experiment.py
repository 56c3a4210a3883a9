"""What is kept of a run that failed."""

from __future__ import annotations

from pathlib import Path

from testbed.demo.slurm import experiment


def test_the_jobs_outputs_outlive_the_rack(tmp_path: Path) -> None:
    rack, out = tmp_path / "rack", tmp_path / "out"
    printed = rack / "slurm" / "tmp"
    printed.mkdir(parents=True)
    out.mkdir()
    (printed / "7.out").write_text("0: reset by peer\n")
    (printed / "traced.py").write_text("")
    hint = experiment._keep_outputs(rack, out)
    assert [path.name for path in (out / "outputs").iterdir()] == ["7.out"]
    assert hint == f"what the jobs printed is in {out / 'outputs'}"

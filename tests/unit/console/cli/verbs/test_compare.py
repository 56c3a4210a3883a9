"""``compare``: what it asks of the controller, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.cli.errors import CliError
from console.cli.verbs.insight import compare
from tests.unit.console.cli.conftest import Run

JOB = "resources: {gpus: 2}\nrun: [train]\nproject: alpha\n"
RESULT = {
    "rows": [
        {
            "placement": "local",
            "span": 1,
            "crossings": 0,
            "ring_rate": 1.0,
            "predicted_step_s": {"low": 0.58, "high": 0.61},
            "measured_step_s": {"median": 0.602},
            "error": 0.012,
            "change": 0.0,
            "util": 0.5,
            "uplink_bytes_s": None,
            "moves": 1,
            "leaves": 4,
            "within": True,
        }
    ],
    "summary": {
        "recommended": "local",
        "because": "local is the fastest",
        "open": False,
        "within": 0.05,
        "plan": {
            "endpoints": ["gpu0", "gpu1"],
            "homes": {"gpu0": "as0", "gpu1": "as0"},
            "moves": {"gpu1": "as0"},
        },
        "known": [{"order": ["gpu0"]}],
    },
    "invalid_because": [],
}


class Controller:
    """Answers one comparison that ends at its second look."""

    def __init__(self, result: dict[str, Any] | None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.result = result

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def part(self, name: str) -> str:
        return name

    def _view(self, state: str) -> dict[str, Any]:
        ended = state != "running"
        return {
            "id": "m3",
            "type": "compare",
            "state": state,
            "reason": "" if self.result else "no endpoint is idle",
            "progress": {"done": 5, "total": 100},
            "valid": True if ended and self.result else None,
            "result": self.result if ended else None,
        }

    def post(self, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.sent.append(body)
        if path == "/plans":
            moves = [{"endpoint": e, "from": None, "to": home} for e, home in body["homes"].items()]
            return {"id": "p1", "epoch": 4, "moves": moves}
        assert path == "/measurements"
        return self._view("running")

    def get(self, path: str) -> dict[str, Any]:
        assert path.startswith("/measurements/")
        return self._view("completed" if self.result else "failed")


def against(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any] | None = RESULT) -> Controller:
    controller = Controller(result)
    monkeypatch.setattr(compare, "connect", lambda ctx: controller)
    return controller


def test_it_sends_the_job_and_prints_the_table(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller = against(monkeypatch)
    (file := tmp_path / "job.yaml").write_text(JOB)
    plan = tmp_path / "plan.json"
    done = offline("compare", "-f", str(file), "--within", "7%", "--out", str(plan))
    assert done.code == 0, done.err
    sent, asked = controller.sent
    assert asked == {"homes": {"gpu0": "as0", "gpu1": "as0"}}
    assert (sent["type"], sent["project"]) == ("compare", "alpha")
    assert sent["settings"]["job"] == {"count": 2, "command": ["train"], "project": "alpha"}
    assert sent["settings"]["within"] == pytest.approx(0.07)
    assert sent["settings"]["mode"] == "default"
    assert "0.58 … 0.61 s" in done.out and "1.2 %" in done.out
    assert "recommended: local" in done.out
    assert f"lightloom apply {plan}" in done.err
    assert "--endpoints gpu0,gpu1 --rank-order placed" in done.err
    assert json.loads(plan.read_text())["moves"][1]["endpoint"] == "gpu1"


def test_json_is_one_document_and_from_brings_what_is_known(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    controller = against(monkeypatch)
    (file := tmp_path / "job.yaml").write_text(JOB)
    done = offline("compare", "-f", str(file), "--predict", "--from", "m1", "-o", "json")
    assert done.document["result"]["summary"]["recommended"] == "local"
    assert controller.sent[0]["settings"]["known"] == [{"order": ["gpu0"]}]
    assert controller.sent[0]["settings"]["mode"] == "predict"


def test_a_comparison_without_a_result_fails_with_its_reason(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    against(monkeypatch, None)
    (file := tmp_path / "job.yaml").write_text(JOB)
    done = offline("compare", "-f", str(file))
    assert done.code == 1
    assert "no endpoint is idle" in done.err


def test_run_and_predict_exclude_each_other(offline: Run, tmp_path: Path) -> None:
    (file := tmp_path / "job.yaml").write_text(JOB)
    assert offline("compare", "-f", str(file), "--run", "--predict").code == 2


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.1", 0.1), ("0", 0.0)])
def test_shares_are_read(text: str, share: float) -> None:
    assert compare.share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "x", "200%", "-1", "nan"])
def test_other_texts_are_no_shares(text: str) -> None:
    with pytest.raises(CliError, match="not a share"):
        compare.share_of(text)

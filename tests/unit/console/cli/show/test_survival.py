"""Sections of a report about checkpoints and recoveries."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from console.cli.show.page.survival import checkpointed, recovered, timeline
from tests.parts.api.survival import RECOVERIES, RECOVERY, checkpoints_view

MARKUP = "<img src=x onerror=alert(1)>"


def drawing(page: str) -> ET.Element:
    (found,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    return ET.fromstring(found)  # noqa: S314 - our own


def test_a_report_has_every_step_and_every_phase() -> None:
    view = checkpoints_view(["gpu0", "gpu1"])
    kept = checkpointed(view.model_dump(mode="json"))
    assert kept.count("<tr>") == 4
    assert "a restart loads step 400" in kept
    page = recovered(RECOVERIES.model_dump(mode="json"))
    bars = list(drawing(page).iter("rect"))
    assert len(bars) == 8
    assert "spare gpu5 for gpu3" in page
    assert "ETTR 0.930" in page
    assert all(float(b.get("x", "")) + float(b.get("width", "")) <= 900 for b in bars)


def test_text_from_outside_is_text() -> None:
    view = {
        "job": "red",
        "ettr": None,
        "gpu_hours_lost": {MARKUP: 1.0},
        "recoveries": [
            RECOVERY.model_copy(update={"why": MARKUP, "objects": [MARKUP]}).model_dump()
        ],
    }
    assert MARKUP not in recovered(view)
    assert recovered({**view, "recoveries": []}) == ""


def test_a_recovery_without_a_phase_says_so() -> None:
    assert "No phase has ended" in timeline({})

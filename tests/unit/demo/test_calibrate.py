import json
from dataclasses import replace
from pathlib import Path

import pytest

from sitefile import load_site
from testbed.demo import PAPER_SITE, DemoError, calibrate
from testbed.demo.api import Controller
from testbed.demo.jobs import DemoJobs
from testbed.demo.rule import TrainerCalibration
from tests.unit.demo.fake import FakeController

SITE = load_site(PAPER_SITE)
MEASURED = TrainerCalibration(0.18, 4_088_680, 0.0, 0.3)


def test_a_stored_measurement_is_found_by_image_and_share(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "rates.json"
    key = calibrate.cache_key("ll-trainer:1", 0.25)
    calibrate.save(file, key, MEASURED)
    assert calibrate.load(file, key) == MEASURED
    assert calibrate.load(file, calibrate.cache_key("ll-trainer:2", 0.25)) is None
    assert calibrate.load(file, calibrate.cache_key("ll-trainer:1", 0.5)) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"k": 1}', '{"k": {"compute_s": 1, "gradient_bytes": 1, "overlap": 0}}']
)
def test_unreadable_measurement_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    assert calibrate.load(file, "k") is None


def test_both_cases_use_one_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "FILE", tmp_path / "rates.json")
    fake = FakeController(dict(SITE.homes))
    said: list[str] = []
    unshaped: list[int] = []
    with Controller("http://127.0.0.1:8470", fake.transport()) as controller:
        for recalibrate, expected in ((False, 2), (False, 2), (True, 4)):
            found = calibrate.known_or_measured(
                DemoJobs(controller),
                SITE,
                "ll-trainer:1",
                run_id="1",
                recalibrate=recalibrate,
                unshape=lambda: unshaped.append(len(fake.submitted)),
                progress=said.append,
            )
            assert len(fake.submitted) == expected
            assert found.gradient_bytes == 4_088_680
    assert unshaped == [0, 2]  # before each measurement
    alone, pair = fake.submitted[:2]
    assert (alone["count"], pair["count"]) == (1, 2)
    assert SITE.homes[pair["endpoints"][0]] == SITE.homes[pair["endpoints"][1]]
    for job in (alone, pair):
        words = job["command"]
        batch = int(words[words.index("--global-batch") + 1])
        assert batch == 48 * job["count"]
    assert len(json.loads((tmp_path / "rates.json").read_text())) == 1
    assert "calibrated" in said[2]


def test_a_site_without_neighbours_is_refused() -> None:
    fake = FakeController(dict(SITE.homes))
    lonely = replace(SITE, homes={"gpu0": "as0", "gpu1": "as1"})
    with (
        Controller("http://127.0.0.1:8470", fake.transport()) as controller,
        pytest.raises(DemoError, match="share an aggregator"),
    ):
        calibrate.measure(
            DemoJobs(controller), lonely, image="i", run_id="1", progress=lambda line: None
        )

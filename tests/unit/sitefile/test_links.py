"""The site file's `links:`, and the optics that endpoints and aggregators name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sitefile import SiteFileError, load_site
from tests.parts.sites import PAPER


def written(tmp_path: Path, **changes: Any) -> Path:
    document = yaml.safe_load(PAPER.read_text()) | changes
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_links_need_no_time_unless_the_site_file_says_so() -> None:
    site = load_site(PAPER)
    assert site.links.up_s == {"default": 0.0}
    assert {e.optic for e in site.endpoints} == {a.optic for a in site.aggregators} == {"default"}


def test_an_endpoint_names_its_kind_of_optic(tmp_path: Path) -> None:
    endpoints = yaml.safe_load(PAPER.read_text())["endpoints"]
    endpoints[0]["optic"] = "lr4"
    links = {"up_s": 6, "optics": {"lr4": {"up_s": 12}}}
    site = load_site(written(tmp_path, endpoints=endpoints, links=links))
    assert site.links.up_s == {"default": 6.0, "lr4": 12.0}
    assert [e.optic for e in site.endpoints][:2] == ["lr4", "default"]


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"up_s": -1}, "links.up_s"),
        ({"up_s": 61}, "links.up_s"),
        ({"optics": {"default": {"up_s": 1}}}, "write its time as links.up_s"),
        ({"optics": {"lr4": {}}}, "links.optics"),
    ],
)
def test_bad_times_are_refused(tmp_path: Path, links: dict[str, Any], said: str) -> None:
    with pytest.raises(SiteFileError, match=said.replace(".", r"\.")):
        load_site(written(tmp_path, links=links))


def test_an_unknown_optic_is_refused(tmp_path: Path) -> None:
    aggregators = yaml.safe_load(PAPER.read_text())["aggregators"]
    aggregators[1]["optic"] = "zr"
    with pytest.raises(SiteFileError, match=r"aggregators\[1\]\.optic.*unknown optic 'zr'"):
        load_site(written(tmp_path, aggregators=aggregators))

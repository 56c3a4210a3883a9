"""What a person reads of a wrong value: no regular expression, no validator's own words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.schema.jobs import JobBody
from controller.schema.submit.file import job_schema, load_job
from sitefile import SiteFileError, load_site, site_schema
from sitefile.wording import FORMS
from tests.parts.sites import PAPER

SIZES = r"^\s*(\d*\.?\d+)\s*(\w+)?"
"""Of pydantic's ByteSize, which has an error of its own."""


def patterns(node: Any) -> Iterator[str]:
    """Yield every pattern of a schema, of keys as well."""
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        yield from node.get("patternProperties", {})
        for inner in node.values():
            yield from patterns(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from patterns(inner)


@pytest.mark.parametrize(
    "schema",
    [job_schema(), site_schema(), JobBody.model_json_schema()],
    ids=lambda s: s["title"],
)
def test_every_pattern_has_words(schema: dict[str, Any]) -> None:
    assert set(patterns(schema)) - {SIZES} <= set(FORMS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: Red_1", "name: must be a name of 1 to 41 lower-case letters"),
        ("resources: {gpus: 1, memry: 3}", "unknown key 'memry'; did you mean 'memory'?"),
        ("checkpont: {}", "unknown key 'checkpont'; did you mean 'checkpoint'?"),
        ("checkpoint: {local: {size: 1GiB}, copies: {schema: xor}}", "did you mean 'scheme'?"),
        ("volumes: [{volum: a, path: /b}]", "did you mean 'volume'?"),
        ("policy: lvie", "policy: must be 'live', 'pause' or 'restart'; did you mean 'live'?"),
        ("resources: {gpus: two}", "resources.gpus: must be a whole number; got 'two'"),
        ("resources: [gpus]", "resources: must be keys and values"),
        ("resources:\n\tgpus: 1", "line 2, column 1: the line is indented by a tab"),
        ("env:\n  A: x\n\tB: y", "line 3, column 1: the line is indented by a tab"),
    ],
)
def test_what_a_job_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(SiteFileError) as told:
        load_job(file)
    assert said in str(told.value)
    for jargon in ("pattern", "[a-z", "Input should", "valid "):
        assert jargon not in str(told.value)


def test_a_tab_and_a_wrong_key_in_a_site_file(tmp_path: Path) -> None:
    text = PAPER.read_text(encoding="utf-8")
    file = tmp_path / "site.yaml"
    file.write_text(text.replace("servers:\n  -", "servers:\n\t-", 1))
    with pytest.raises(SiteFileError, match="the line is indented by a tab"):
        load_site(file)
    file.write_text(text.replace("agent:", "agnet:", 1))
    with pytest.raises(SiteFileError, match=r"'agnet'; did you mean 'agent'\?"):
        load_site(file)

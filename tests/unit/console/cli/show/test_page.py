"""The file of a report: one script and one style that its policy names, and a record as data."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from console.cli.show.page import page
from tests.parts.api.studied import MARKUP

EVIL = f"</script><script>alert(1)</script><!--{MARKUP}\x1b[31m"


def inside(start: str, text: str) -> list[str]:
    """The texts of the elements with this start tag."""
    return re.findall(rf"{re.escape(start)}(.*?)</", text, re.DOTALL)


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_names_the_script_and_the_style_and_nothing_else() -> None:
    text = page("Job red", {"job": "red"})
    (script,) = inside("<script>", text)
    (style,) = inside("<style>", text)
    assert f'http-equiv="Content-Security-Policy" content="{policy(script, style)}"' in text


def policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def test_a_page_fetches_nothing() -> None:
    text = page("Job red", {"job": "red"})
    for code in inside("<script>", text):
        text = text.replace(code, "")
    known = ("html", "head", "meta", "title", "style", "body", "main", "noscript", "script")
    assert set(re.findall(r"<([a-z]+)", text)) == set(known)
    assert not re.search(r"url\(|@import|\bsrc=", text)


def test_every_module_is_in_the_script() -> None:
    (script,) = inside("<script>", page("Job red", {"job": "red"}))
    assert not re.search(r"^import\b", script, re.MULTILINE)
    assert not re.search(r"^export\b(?! function costlyLerp)", script, re.MULTILINE)


def test_text_from_outside_is_data() -> None:
    text = page(EVIL, {"job": EVIL, "output": [EVIL]})
    assert "<script>alert" not in text
    assert MARKUP not in text
    (record,) = inside('<script type="application/json" id="record">', text)
    assert json.loads(record) == {"job": EVIL, "output": [EVIL]}

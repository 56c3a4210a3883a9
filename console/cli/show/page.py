"""A job's record as one file: the console's own pages with the record inlined.

A browser loads no modules from disk, so the modules are put into one script, each as a function
that returns what it exports, in the order of their imports. The page's content policy names the
hashes of this script and of the styles, so nothing else runs or styles: a text in the record that
looks like a script is data.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

_ENTRY = "static/js/report/main.js"
_STYLES = (
    *("static/css/tokens.css", "static/css/layout.css", "static/css/parts.css"),
    *("static/css/views.css", "static/css/measure.css", "vendor/uPlot.min.css"),
    "static/css/report.css",
)
_IMPORT = re.compile(r'^import (?:(\w+)|\{ ([^}]*) \}) from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export ((?:async )?function|class|const) (\w+)|^export \{ (\w+) as default \};$",
    re.MULTILINE,
)
_POLICY = "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'"


def page(title: str, record: Mapping[str, Any]) -> str:
    """Return the page. It fetches nothing, and runs no script but the console's."""
    style = "\n".join(_asset(name) for name in _STYLES)
    script = _bundle(_ENTRY)
    policy = _POLICY.format(_hash(script), _hash(style))
    # "<" inside a string is escaped, so that no text ends the element.
    data = json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        '<body><main id="app"></main><noscript>This record needs JavaScript.</noscript>'
        f'<script type="application/json" id="record">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def _bundle(entry: str) -> str:
    """Return a module and all that it imports as one script."""
    done: dict[str, str] = {}
    parts: list[str] = []

    def add(path: str) -> str:
        if path not in done:
            source = _IMPORT.sub(lambda found: _imported(found, path), _asset(path))
            exported = _exported(list(_EXPORT.finditer(source)))
            source = _EXPORT.sub(lambda found: f"{found[1]} {found[2]}" if found[1] else "", source)
            done[path] = f"m{len(done)}"
            parts.append(
                f"const {done[path]} = (() => {{\n{source}\nreturn {{ {exported} }};\n}})();"
            )
        return done[path]

    def _imported(found: re.Match[str], path: str) -> str:
        default, names, target = found.groups()
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        taken = f"{{ {names.replace(' as ', ': ')} }}" if names else f"{{ default: {default} }}"
        return f"const {taken} = {add(beside.replace('static/vendor/', 'vendor/'))};"

    add(entry)
    whole = "\n".join(parts).replace("</", "<\\/")
    return f'(() => {{\n"use strict";\n{whole}\n}})();'


def _exported(found: Sequence[re.Match[str]]) -> str:
    """Return the names; a library that exports one thing has other names in comments only."""
    default = [f"default: {one[3]}" for one in found if one[3]]
    return ", ".join(default or [one[2] for one in found])


def _asset(path: str) -> str:
    return files("console.web").joinpath(path).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return a text's hash as content policies name it (CSP level 3, section 2.3.1)."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

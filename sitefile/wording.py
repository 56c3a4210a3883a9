"""What is wrong with a value, in plain words in place of a validator's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from sitefile import names

_LETTERS = "lower-case letters, digits and '-'"
FORMS: Mapping[str, str] = {
    f"^{names.NAME}$": f"must be a name of 1 to 63 {_LETTERS}",
    f"^{names.SITE_OBJECT}$": (
        f"must be a name of 1 to 63 {_LETTERS}, without '-' at its start or end"
    ),
    f"^{names.JOB}$": f"must be a name of 1 to 41 {_LETTERS}, without '-' at its start or end",
    f"^{names.PROJECT}$": f"must be a name of 1 to 32 {_LETTERS}, without '-' at its start or end",
    f"^{names.SECRET_NAME}$": f"must be a name of 1 to 63 {_LETTERS}, '.' and '_'",
    r"^[A-Z_][A-Z0-9_]{0,63}$": "must be a name of capital letters, digits and '_', such as SEED",
    r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$": "must be a MAC address in lower case: 02:42:ac:11:00:02",
    r"^[^/\s]+/[^/\s]+$": "must be a device and a port: as0/1",
    r"^[a-z0-9]+\+[a-z0-9]+://[^\s/]+$": "must be a URL such as calient+tl1://user@host:3082",
    r"^([01]\d|2[0-3]):[0-5]\d$": "must be a time of day such as 22:00",
    r"^/[^\x00]*$": "must be an absolute path",
    r"^/[^\x00]+$": "must be an absolute path",
    r"^(/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*)+$": (
        "must be an absolute path of letters, digits and the signs . _ @ + -"
    ),
    r"^[^\x00]*$": "must be text without a null character",
    r"^[^\x00]+$": "must be text, not empty",
    r"^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$|^[0-9A-Fa-f]{64}$": (
        "must be a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons"
    ),
    r"^(unix:/[^\x00\s]+|https?://[^\s/@]+/?)$": "must be unix:/PATH, or the URL of a host",
    r"^https?://[^\s/@]+(/\S*)?$": "must be a URL such as https://host/path, without a user",
    r"^[A-Za-z0-9._-]{1,253}$": "must be a DNS name",
    r"^[A-Za-z0-9._-]{1,64}$": "must be the name of a user",
    r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62})$": "must be the name of a node",
    r"^[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(:[0-9]{1,5})?$": (
        "must be a registry's host in lower case, with or without a port"
    ),
    r"^(never|on-failure(:[1-9][0-9]{0,2})?)$": "must be never, on-failure or on-failure:N",
    r"^(6[0-4]|[1-5]?[0-9])\?$": "must be a whole number, or one with a question mark: 1?",
    r"^(rename|dcp|orbax|keras|marker: ?[^/\s]{1,64})$": (
        "must be rename, dcp, orbax, keras or 'marker: FILE'"
    ),
}
"""What a text that fails a pattern must be, by the pattern."""
_LIMITS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be {} or more"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "string_too_short": ("min_length", "must have {} or more characters"),
    "string_too_long": ("max_length", "must have {} or fewer characters"),
    "too_short": ("min_length", "must have {} or more entries"),
    "too_long": ("max_length", "must have {} or fewer entries"),
}
_KINDS: Mapping[str, str] = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "byte_size": "must be a size such as 12GiB or 500MB",
    "byte_size_unit": "must be a size with a known unit, such as 12GiB or 500MB",
    "bool": "must be true or false",
    "string": "must be text",
    "list": "must be a list",
    "tuple": "must be a list",
    "extra_forbidden": "unknown field",
    "dict": "must be keys and values",
    "model": "must be keys and values",
}
_QUOTED = re.compile(r"'([^']*)'")


def plain_words(item: Mapping[str, Any]) -> str:
    """Return what is wrong with one value, of an entry of ``ValidationError.errors()``."""
    kind, context = str(item.get("type", "")), item.get("ctx") or {}
    if kind in _LIMITS and _LIMITS[kind][0] in context:
        key, form = _LIMITS[kind]
        return form.format(context[key])
    if kind == "string_pattern_mismatch":
        return FORMS.get(str(context.get("pattern")), "is not written as it must be")
    if kind in {"literal_error", "enum"}:
        return f"must be {context.get('expected')}{_choice(item, str(context.get('expected')))}"
    if kind == "value_error" and "error" in context:
        said = str(context["error"]).removesuffix(".")
        return f"{said}{_choice(item, said.partition(' is not one of ')[2])}"
    of = _KINDS.get(kind) or _KINDS.get(kind.partition("_")[0])
    return of or str(item.get("msg", "is not valid"))


def _choice(item: Mapping[str, Any], expected: str) -> str:
    return meant(str(item.get("input")), _QUOTED.findall(expected))


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question with the known word that is like ``word``; empty without one."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close and close[0] != word else ""


def known_keys(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """Return the keys that a document of ``model`` may have beside the one at ``place``."""
    schema = model.model_json_schema()
    nodes = [schema]
    for part in place[:-1]:
        below = [found for node in nodes for found in _below(node, part, schema)]
        nodes = below or nodes  # a part that names an alternative is not a place of the document
    found = (key for node in nodes for one in _objects(node, schema) for key in one["properties"])
    return list(dict.fromkeys(found))


def _below(node: Mapping[str, Any], part: str | int, schema: Mapping[str, Any]) -> Iterator[Any]:
    for one in _alternatives(node, schema):
        inner = one.get("items") if isinstance(part, int) else one.get("properties", {}).get(part)
        inner = inner or (one.get("additionalProperties") if isinstance(part, str) else None)
        if isinstance(inner, dict):
            yield inner


def _objects(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Any]:
    return (one for one in _alternatives(node, schema) if "properties" in one)


def _alternatives(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Any]:
    if "$ref" in node:
        yield from _alternatives(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
        return
    yield node
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in node.get(key, ()):
            yield from _alternatives(inner, schema)

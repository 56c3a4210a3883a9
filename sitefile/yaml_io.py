"""Reads YAML safely: bounded size, no aliases, no duplicate keys, no tags, no altered words.

A plain word becomes a number only where JSON writes that number so; any other word that some
reader of YAML reads as a number stays as written, as an ``Unclear``.

Values are built from the parser's events. PyYAML resolves every node of a document in Python;
this module resolves every distinct word once, which makes large files fast to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from sitefile.errors import FileProblem, SiteFileError
from sitefile.words import Unclear

MAX_BYTES = 64 * 1024 * 1024
"""Default size limit; a state file of 100,000 endpoints is about 12 MB."""

_DEEPEST = 100
"""Maximum levels of nesting; site files have only a few."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_KEY = object()
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
"""A number of JSON (RFC 8259), which every version of YAML reads alike."""
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_NO_TEXT = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"}


def load_mapping(
    path: Path,
    *,
    max_bytes: int = MAX_BYTES,
    schema: str = "lightloom schema",
    unclear: bool = True,
) -> dict[str, Any]:
    """Read one YAML (or JSON) document that is a mapping. Raises SiteFileError otherwise.

    ``schema`` is the command that prints the file's schema, for the error's fix. Without
    ``unclear``, for documents that no model checks, an ``Unclear`` word is an error.
    """
    (document,) = load_mappings(path, most=1, max_bytes=max_bytes, schema=schema, unclear=unclear)
    return document


def load_mappings(
    path: Path,
    *,
    most: int,
    max_bytes: int = MAX_BYTES,
    schema: str = "lightloom schema",
    unclear: bool = True,
) -> list[dict[str, Any]]:
    """Read 1 to ``most`` documents, as ``load_mapping``. Raises SiteFileError."""
    try:
        with path.open("rb") as file:  # a pipe has no size beforehand
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise SiteFileError(
                str(path), [FileProblem("", f"file is larger than {max_bytes} bytes")]
            )
        text = data.decode("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise SiteFileError(
            str(path), [FileProblem("", reason, "give the path of a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise SiteFileError(str(path), [FileProblem("", "file is not UTF-8 text")]) from error
    try:
        documents = _Builder(most, unclear=unclear).build(yaml.parse(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error)
        fix = "correct the YAML"
        if mark and _is_indented_by_tab(text, mark.line):
            problem, fix = "the line is indented by a tab", "indent it with blanks"
        raise SiteFileError(str(path), [FileProblem(where, problem, fix)]) from error
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            where = f"document {number}" if len(documents) > 1 else ""
            raise SiteFileError(
                str(path), [FileProblem(where, "the document is not a mapping", f"see `{schema}`")]
            )
    return documents


def _is_indented_by_tab(text: str, line: int) -> bool:
    lines = text.splitlines()
    return line < len(lines) and "\t" in lines[line][: -len(lines[line].lstrip()) or None]


class _Builder:
    """Builds the values of at most ``most`` documents from events."""

    def __init__(self, most: int, *, unclear: bool) -> None:
        self._most = most
        self._unclear = unclear
        self._words: dict[str, Any] = {}
        self._plain: Any = yaml.SafeLoader("")
        self._open: list[tuple[Any, Any]] = []
        """Open collections, outermost first, each with its next key."""

    def build(self, events: Iterator[Any]) -> list[Any]:
        """Return the documents' values; one None without a document."""
        documents: list[Any] = []
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                value = self._scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._start(event)
                continue
            elif isinstance(event, yaml.CollectionEndEvent):
                value = self._open.pop()[0]
            elif isinstance(event, yaml.AliasEvent):
                raise _error(event, "aliases (*name) are not accepted; write the value out")
            elif isinstance(event, yaml.DocumentStartEvent):
                documents.append(None)
                if len(documents) > self._most:
                    raise _error(
                        event,
                        "a file must contain only one document"
                        if self._most == 1
                        else f"a file must contain at most {self._most} documents",
                    )
                continue
            else:
                continue
            if self._open:
                self._add(value, event)
            else:
                documents[-1] = value
        return documents or [None]

    def _start(self, event: Any) -> None:
        if event.tag not in {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            raise _error(event, f"tag {event.tag} is not accepted")
        if len(self._open) >= _DEEPEST:
            raise _error(event, "nested too deeply")
        is_map = isinstance(event, yaml.MappingStartEvent)
        self._open.append(({} if is_map else [], _NO_KEY))

    def _add(self, value: Any, event: Any) -> None:
        """Add a value to the innermost collection."""
        collection, key = self._open[-1]
        if isinstance(collection, list):
            collection.append(value)
        elif key is not _NO_KEY:
            collection[key] = value
            self._open[-1] = collection, _NO_KEY
        elif isinstance(value, Unclear):
            raise _error(event, f"{value.problem}; {value.fix}")
        elif isinstance(value, (dict, list)):
            raise _error(event, "a key must be a plain value")
        elif value in collection:
            raise _error(event, f"key {value!r} is listed twice")
        else:
            self._open[-1] = collection, value

    def _scalar(self, event: Any) -> Any:
        text = event.value
        if event.tag not in {None, "!", "tag:yaml.org,2002:str"}:
            raise _error(event, f"tag {event.tag} is not accepted")
        if event.tag is not None or not event.implicit[0]:
            return text
        try:
            return self._words[text]
        except KeyError:
            value = self._words[text] = self._meaning(text, event)
            return value

    def _meaning(self, text: str, event: Any) -> Any:
        """Return the value of a plain word: a number, a boolean, None, the word, or Unclear."""
        tag = self._plain.resolve(yaml.ScalarNode, text, (True, False))
        if tag in _NO_TEXT:
            node = yaml.ScalarNode(tag, text, event.start_mark, event.end_mark)
            return self._plain.construct_object(node, deep=True)
        try:
            found = _number(text, is_number=tag in _NUMBERS)
        except ValueError as error:  # more digits than Python reads
            raise _error(event, f"{text!r:.80}: {error}") from error
        if isinstance(found, Unclear) and not self._unclear:
            raise _error(event, f"{found.problem}; {found.fix}")
        return found


def _number(text: str, *, is_number: bool) -> int | float | str | Unclear:
    """Return the number, or the text, that a word is to every reader. ValueError.

    ``is_number`` is the opinion of YAML 1.1; Python's own, which models follow, counts as well.
    """
    match = _NUMBER.fullmatch(text)
    if match is not None and not (match[2] or match[3]):
        value = int(text)
        return value if str(value) == text else Unclear(text)
    if match is not None and is_number:
        return float(text) if isfinite(float(text)) else Unclear(text)
    if match is not None:
        return text  # 1e3: text in YAML 1.1, and the same number wherever it is one
    return Unclear(text) if is_number or _reads_as_number(text) else text


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return any(char.isdigit() for char in text)  # else inf and nan, which no field accepts


def _error(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

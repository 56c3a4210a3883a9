"""``submit``'s short cuts for checkpoints and spares; a job file has every setting."""

from __future__ import annotations

from typing import Any

from console.cli.errors import usage

Document = dict[str, Any]


def asked(*, size: str | None, rule: str | None, store: str | None, spares: str | None) -> Document:
    """Return the options as fields of the request. CliError with exit code 2."""
    found: Document = {}
    if size is not None:
        found["local"] = {"size_bytes": _size(size)}
    if rule is not None:
        found["complete"] = rule
    if store is not None:
        name, colon, every = store.partition(":")
        if not name or (colon and not every.isdecimal()):
            raise usage(f"--checkpoint-store {store!r} is not VOLUME[:N]", "for example models:10")
        found["shared"] = {"store": name, **({"every": int(every)} if every else {})}
    said = {"checkpoint": found} if found else {}
    return said | (_spares(spares) if spares is not None else {})


def checkpoint(file: Document | None, line: Document | None) -> Document:
    """Return the file's checkpoint, overridden part by part. CliError."""
    whole = {**(file or {}), **(line or {})}
    whole["local"] = {**(file or {}).get("local", {}), **(line or {}).get("local", {})}
    if "size_bytes" not in whole["local"]:
        raise usage("the space of a rank's checkpoints is missing", "give --checkpoint-size 2GiB")
    return whole


def _size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415 - start-up time

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise usage(f"--checkpoint-size {text!r} is not a size", "for example 2GiB")
    return size


def _spares(text: str) -> Document:
    if not text.removesuffix("?").isdecimal():
        raise usage(f"--spares {text!r} is not N or N?", "for example 1, or 1? if there is one")
    from controller.schema.submit.file import spares  # noqa: PLC0415 - start-up time

    return spares(text)

"""The JSON Web Token by which Slurm knows lightloom, in a file that something else renews."""

from __future__ import annotations

import base64
import binascii
import json
import stat
from pathlib import Path

from controller.devices.observed import ObservedError

_LARGEST = 16_384


class TokenFile:
    """Reads the token again whenever its file changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: tuple[tuple[int, int, int], str] | None = None

    @property
    def obj(self) -> str:
        """Its name in errors."""
        return f"token {self._file}"

    def read(self) -> str:
        """Return the token as it is now. Blocks on the file. ObservedError."""
        try:
            found = self._file.stat()
            key = (found.st_mtime_ns, found.st_ino, found.st_mode)
            if self._read is not None and self._read[0] == key:
                return self._read[1]
            if stat.S_IMODE(found.st_mode) & 0o007:
                raise ObservedError(
                    "forbidden", self.obj, "everybody can read it", f"chmod o= {self._file}"
                )
            with self._file.open("rb") as file:
                text = file.read(_LARGEST + 1).decode("ascii", errors="replace").strip()
        except OSError as error:
            hint = "write the output of `scontrol token` into it"
            raise ObservedError("forbidden", self.obj, str(error.strerror), hint) from error
        text = text.removeprefix("SLURM_JWT=")
        if not text or len(text) > _LARGEST or not text.isprintable() or " " in text:
            raise ObservedError("forbidden", self.obj, "it holds no token", "see `scontrol token`")
        self._read = key, text
        return text

    def expires_at(self) -> float | None:
        """Return when it ends, in seconds since 1970; None when it does not say.

        Blocks on the file. ObservedError.
        """
        parts = self.read().split(".")
        if len(parts) != 3:
            return None
        try:
            padded = parts[1] + "=" * (-len(parts[1]) % 4)
            claims = json.loads(base64.urlsafe_b64decode(padded))
        except (ValueError, binascii.Error, RecursionError):
            return None
        end = claims.get("exp") if isinstance(claims, dict) else None
        return float(end) if isinstance(end, int) and 0 <= end < 2**40 else None

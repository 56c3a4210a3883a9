"""Defines the error of this package."""

from __future__ import annotations


class TrustError(Exception):
    """A certificate or a key cannot be used; ``hint`` explains how to fix it.

    Codes: ``not_found`` (no such file), ``forbidden`` (a key that others can read),
    ``invalid`` (expired, of another authority, of another role, not a certificate),
    ``conflict`` (it exists already), ``failed``.
    """

    def __init__(self, code: str, message: str, *, object: str, hint: str = "") -> None:
        super().__init__(f"{object}: {message}")
        self.code = code
        self.object = object
        self.message = message
        self.hint = hint

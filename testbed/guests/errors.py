"""Defines the error of QEMU guests."""


class GuestError(Exception):
    """A guest could not be built, started or used; ``hint`` is how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

"""Defines the error of RoCEv2 experiments on the rack."""


class RoceError(Exception):
    """A guest could not be built, started or used; ``hint`` tells how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

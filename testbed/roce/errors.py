"""What goes wrong when RoCEv2 is tried on the rack."""


class RoceError(Exception):
    """A guest could not be made, started or asked; ``hint`` says what would mend it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

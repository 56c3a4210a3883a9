"""Defines the error of image builds."""


class ImageError(Exception):
    """The image could not be built; ``hint`` is how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

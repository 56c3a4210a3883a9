"""What goes wrong when an image is made."""


class ImageError(Exception):
    """The image could not be made; ``hint`` says what would mend it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

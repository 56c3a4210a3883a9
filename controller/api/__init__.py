"""The REST API people's tools speak: FastAPI over the one service that owns all state."""

from controller.api.app import create_app
from controller.api.operations import Operations

__all__ = ["Operations", "create_app"]

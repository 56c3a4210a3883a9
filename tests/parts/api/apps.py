"""The REST API over a controller, real or fake."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from controller.api.app import create_app
from controller.service.service import Service
from tests.parts.api.fake_service import FakeService


def app_of(service: Service | FakeService | None = None, *parts: Any, **options: Any) -> FastAPI:
    """Return the API over ``service``, or over a fake one of its own."""
    service = service or FakeService()
    return create_app(service.desks, *parts, **options)

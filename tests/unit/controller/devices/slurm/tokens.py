"""Makes tokens as Slurm does."""

from __future__ import annotations

import base64
import json


def jwt(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{payload}.signature"

"""Work that anyio gives to threads of its own (starlette's files) is pool work like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from anyio._backends._asyncio import AsyncIOBackend


async def _run(
    _cls: type, function: Callable[..., Any], arguments: Sequence[Any], *_: Any, **_options: Any
) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


@contextmanager
def without_threads() -> Iterator[None]:
    """Run anyio's work by the loop for a while."""
    with patch.object(AsyncIOBackend, "run_sync_in_worker_thread", classmethod(_run)):
        yield

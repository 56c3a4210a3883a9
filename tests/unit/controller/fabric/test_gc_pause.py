"""Full collections are deferred while a block is active, and resume afterwards."""

from __future__ import annotations

import gc

import pytest

from controller.fabric.gc_pause import NEVER, full_collections_deferred


def test_full_collections_are_deferred_until_the_last_block_ends() -> None:
    before = gc.get_threshold()
    with full_collections_deferred():
        with full_collections_deferred():
            assert gc.get_threshold() == (*before[:2], NEVER)
        assert gc.get_threshold() == (*before[:2], NEVER)
    assert gc.get_threshold() == before


def test_a_block_that_raises_ends_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), full_collections_deferred():
        raise RuntimeError
    assert gc.get_threshold() == before

"""Full collections are put off while somebody says so, and come again afterwards."""

from __future__ import annotations

import gc

import pytest

from controller.fabric.gc_pause import NEVER, full_collections_deferred


def test_they_are_put_off_until_the_last_block_has_ended() -> None:
    before = gc.get_threshold()
    with full_collections_deferred():
        with full_collections_deferred():
            assert gc.get_threshold() == (*before[:2], NEVER)
        assert gc.get_threshold() == (*before[:2], NEVER)
    assert gc.get_threshold() == before


def test_a_block_that_breaks_ends_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), full_collections_deferred():
        raise RuntimeError
    assert gc.get_threshold() == before

"""Finds best fits in constant time: keys in buckets by a small count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Buckets:
    """Keys 0..n-1, each with a count; of equal counts the lowest key wins.

    Each bucket is a bit set in one integer, and so is the set of non-empty buckets: a best
    fit takes two bit operations, even with ten thousand keys.
    """

    __slots__ = ("_in_use", "_sets", "counts")

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = list(counts)
        """The present count of every key."""
        self._sets: list[int] = [0] * (max(self.counts, default=0) + 1)
        members: dict[int, list[int]] = {}
        for key, count in enumerate(self.counts):
            members.setdefault(count, []).append(key)
        self._in_use = 0
        for count, keys in members.items():
            bits = bytearray(keys[-1] // 8 + 1)
            for key in keys:
                bits[key >> 3] |= 1 << (key & 7)
            self._sets[count] = int.from_bytes(bits, "little")
            self._in_use |= 1 << count

    def add(self, key: int, delta: int) -> None:
        """Change the count of a key."""
        counts, sets = self.counts, self._sets
        before = counts[key]
        counts[key] = after = before + delta
        bit = 1 << key
        sets[before] ^= bit
        if not sets[before]:
            self._in_use ^= 1 << before
        while after >= len(sets):
            sets.append(0)
        if not sets[after]:
            self._in_use |= 1 << after
        sets[after] |= bit

    def tightest(self, least: int) -> int | None:
        """Return the key with the smallest count of at least ``least``, None without one."""
        fitting = self._in_use >> least
        if not fitting:
            return None
        keys = self._sets[least + (fitting & -fitting).bit_length() - 1]
        return (keys & -keys).bit_length() - 1

    def fullest(self) -> int:
        """Return the key with the largest count; there must be at least one key."""
        keys = self._sets[self._in_use.bit_length() - 1]
        return (keys & -keys).bit_length() - 1

    def ascending(self, least: int) -> Iterator[int]:
        """Yield the keys with a count of at least ``least``, smallest count first."""
        for count in range(least, len(self._sets)):
            keys = self._sets[count]
            while keys:
                lowest = keys & -keys
                yield lowest.bit_length() - 1
                keys ^= lowest

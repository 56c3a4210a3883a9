"""Models optical power: launch powers, path losses, noise. Pure."""

from __future__ import annotations

import hashlib

from testbed.ocs_emulator.personality import Personality

_WINDOW_S = 0.01
"""Shortest averaging time of a power meter; each averaging step doubles it."""


class EmulatedLight:
    """Powers in dBm, losses in dB. Ports may be dark, broken, or have excess loss."""

    def __init__(self, personality: Personality) -> None:
        self._personality = personality
        self.dark: set[str] = set()
        """Ports whose far transmitter is off."""
        self.broken: set[str] = set()
        """Failed ports."""
        self.creep_db: dict[str, float] = {}
        """Additional loss of a port since manufacture."""
        self._loss: dict[tuple[str, str], float] = {}

    def launch_dbm(self, port: str) -> float:
        """Return the launch power of the transmitter at a port's fiber."""
        light = self._personality.light
        return light.floor_dbm if port in self.dark else light.launch_dbm

    def out_dbm(self, a: str, b: str) -> float:
        """Return the power at ``b`` of the light that enters at ``a``."""
        launched = self.launch_dbm(a)
        return max(launched - self.loss_db(a, b), self._personality.light.floor_dbm)

    def loss_db(self, a: str, b: str) -> float:
        """Return the insertion loss of a path: its constant loss plus the additional loss."""
        factory = self._loss.get((a, b))
        if factory is None:
            factory = self._loss[a, b] = self._factory_loss_db(a, b)
        return factory + self.creep_db.get(a, 0.0) + self.creep_db.get(b, 0.0)

    def reading(self, port: str, true_dbm: float, now: float, averaging: int = 5) -> float:
        """Return a power meter's reading: the true power plus noise; the floor has no noise.

        ``averaging`` 1..8 averages over 10 ms x 2^(n-1), as a Polatis does.
        """
        light = self._personality.light
        if light.noise_db == 0.0 or true_dbm <= light.floor_dbm:
            return true_dbm
        window = int(now / (_WINDOW_S * 2 ** (averaging - 1)))
        spread = light.noise_db / 2 ** ((averaging - 1) / 2)
        return true_dbm + spread * _normal(f"{port} {window}")

    def _factory_loss_db(self, a: str, b: str) -> float:
        light = self._personality.light
        spread = light.loss_spread_db * _normal(f"{self._personality.serial} {a} {b}")
        return max(0.0, light.loss_mean_db + spread)


def _normal(key: str) -> float:
    """Return a reproducible draw from (nearly) the standard normal distribution.

    The sum of twelve uniform numbers has variance one.
    """
    digest = hashlib.sha256(key.encode()).digest()
    return sum(digest[:12]) / 255.0 - 6.0

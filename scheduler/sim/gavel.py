"""Reads Gavel's measured throughputs, a public table of the cost of scattering a job.

Steps per second of 45 training jobs on 1, 2, 4 and 8 GPUs, once on one server and once
spread over servers (Narayanan et al., OSDI'20; ``simulation_throughputs.json``).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from statistics import median

from scheduler.sim.trace import TraceError


class GavelTable:
    """Throughputs of one GPU generation, consolidated and not."""

    def __init__(
        self,
        together: Mapping[tuple[str, int], float],
        apart: Mapping[tuple[str, int], float],
    ) -> None:
        """Both tables are in steps per second by (model, GPUs)."""
        self._together = dict(together)
        ratios = {
            key: max(rate / apart[key], 1.0)
            for key, rate in together.items()
            if key[1] > 1 and rate > 0 and apart.get(key, 0.0) > 0
        }
        self._ratios = ratios
        self.sizes = sorted({size for _, size in ratios})
        """GPU counts above 1 that were measured both ways."""
        self.models = sorted({model for model, _ in ratios})
        """Models that were measured both ways."""
        self._medians = {n: median(r for (_, m), r in ratios.items() if m == n) for n in self.sizes}

    @staticmethod
    def parse(text: str, source: str, gpu: str = "v100") -> GavelTable:
        """Read the JSON file. Raises TraceError if it is not valid."""
        try:
            document = json.loads(text)
            together = _alone(document[gpu])
            apart = _alone(document[f"{gpu}_unconsolidated"])
        except (
            AttributeError,
            KeyError,
            MemoryError,  # what the parsers raise for deep nesting, like the next one
            RecursionError,
            SyntaxError,
            TypeError,
            ValueError,
        ) as error:
            raise TraceError(
                source, 0, f"not Gavel's throughput table: {type(error).__name__} {error}"
            ) from None
        table = GavelTable(together, apart)
        if not table.sizes:
            raise TraceError(source, 0, "no job was measured both ways on more than one GPU")
        return table

    def steps_per_s(self, model: str, gpus: int) -> float | None:
        """Return the consolidated throughput, of the largest measured size up to ``gpus``."""
        sizes = [n for m, n in self._together if m == model and n <= gpus]
        rate = self._together[model, max(sizes)] if sizes else 0.0
        return rate if rate > 0 else None

    def slowdown(self, model: str, gpus: int) -> float:
        """Return how much longer a step takes when the job is scattered; at least 1.

        Sizes above the largest measured one count as that. A model that was not measured on
        several GPUs gets the median of its size.
        """
        if gpus < 2:
            return 1.0
        size = max((n for n in self.sizes if n <= gpus), default=self.sizes[0])
        return self._ratios.get((model, size), self._medians[size])


def _alone(rates: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, int], float]:
    found = {}
    for key, partners in rates.items():
        model, size = ast.literal_eval(key)
        found[str(model), int(size)] = float(partners["null"])
    return found

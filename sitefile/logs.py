"""Defines the site file's section about the output of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

from sitefile.quantities import Bytes, Duration

KEEP_S = 7 * 86400.0
RANK_BYTES = 64 * 2**20
TOTAL_BYTES = 10 * 2**30


class LogsModel(BaseModel):
    """How long and how much output the agents keep of containers that were removed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep: Duration = Field(KEEP_S, description="after the end, such as 7d or 36h")
    per_rank: Annotated[Bytes, Field(ge=2**20)] = Field(
        ByteSize(RANK_BYTES), description="of one container, also while it runs, such as 64MiB"
    )
    total: Bytes = Field(
        ByteSize(TOTAL_BYTES), description="of each server, such as 10GiB; the oldest goes first"
    )

    @model_validator(mode="after")
    def _fits(self) -> LogsModel:
        if self.per_rank > self.total:
            raise ValueError("per_rank is more than total")
        return self


@dataclass(slots=True, frozen=True)
class LogPolicy:
    """How long (seconds) and how much (bytes) output the agents keep."""

    keep_s: float = KEEP_S
    rank_bytes: int = RANK_BYTES
    total_bytes: int = TOTAL_BYTES

    def options(self) -> Mapping[str, str]:
        """Return the agent's options with their values."""
        return {
            "--keep-logs": f"{self.keep_s:g}",
            "--logs-per-rank": str(self.rank_bytes),
            "--logs-total": str(self.total_bytes),
        }


def logs_of(model: LogsModel) -> LogPolicy:
    """Convert the checked section."""
    return LogPolicy(model.keep, int(model.per_rank), int(model.total))

"""Defines the site file's section about what happens when hardware is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sitefile import names
from sitefile.quantities import Duration

LOST_AFTER_S = 5.0
MAX_SPARES = 4096

EndpointName = Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")]


class RecoveryModel(BaseModel):
    """Endpoints that stand by for all jobs, and when a silent object counts as lost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spares: list[EndpointName] = Field(
        default=[],
        max_length=MAX_SPARES,
        description="endpoints that are kept free; one takes the place of a job's dead endpoint",
    )
    lost_after: Duration = Field(
        LOST_AFTER_S,
        description="how long a server, aggregator or switch is silent, and its jobs cannot work,"
        " before it counts as lost",
    )


@dataclass(slots=True, frozen=True)
class RecoveryPolicy:
    """What stands by for lost hardware; seconds."""

    spares: frozenset[str] = frozenset()
    lost_after_s: float = LOST_AFTER_S


def recovery_of(model: RecoveryModel) -> RecoveryPolicy:
    """Convert the checked section."""
    return RecoveryPolicy(frozenset(model.spares), model.lost_after)

"""How long a link needs from light to carrier, by kind of optic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sitefile import names
from sitefile.quantities import NUMBER

DEFAULT_OPTIC = "default"
LONGEST_UP_S = 60.0
Optic = Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")]
UpTime = Annotated[float, Field(ge=0, le=LONGEST_UP_S), NUMBER]


class OpticModel(BaseModel):
    """One kind of optic."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    up_s: UpTime = Field(description="longest time from light to carrier, in seconds")


class LinksModel(BaseModel):
    """How long links need from light to carrier."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    up_s: UpTime = Field(
        0.0, description="of the kind `default`: longest time from light to carrier, in seconds"
    )
    optics: dict[Optic, OpticModel] = Field(
        default={}, description="further kinds, which endpoints and aggregators name as `optic`"
    )


@dataclass(slots=True, frozen=True)
class LinkPolicy:
    """The site's links: the longest time from light to carrier, by kind of optic."""

    up_s: Mapping[str, float] = field(default_factory=lambda: {DEFAULT_OPTIC: 0.0})


def links_of(model: LinksModel) -> LinkPolicy:
    """Return the policy of a site file's section."""
    kinds = {name: optic.up_s for name, optic in model.optics.items()}
    return LinkPolicy({DEFAULT_OPTIC: model.up_s, **kinds})

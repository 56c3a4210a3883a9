"""A plug-in of pytest: the catalogue has readings of a fan and of what each object has besides.

It has them before any other module of the product is loaded, as an edit of the catalogue would.
"""

from __future__ import annotations

import readings.catalogue as edited
from readings.reading import Object, Reading, Unit

FAN = Reading(
    id=900,
    name="fan_ratio",
    of=Object.GPU,
    unit=Unit.RATIO,
    help="Speed of the fan",
    metric="lightloom_gpu_fan_ratio",
    history="gpu",
    of_job="max",
    column="FAN",
    label="fan",
)
HEATS = [
    Reading(
        id=901 + number,
        name="heat_c",
        of=kind,
        unit=Unit.CELSIUS,
        help=f"Temperature of the {kind}",
        metric=f"lightloom_{kind}_heat_celsius",
        column="HEAT",
        label="heat",
    )
    for number, kind in enumerate((Object.SERVER, Object.SWITCH, Object.AGGREGATOR, Object.PORT))
]

edited.CATALOGUE = (*edited.CATALOGUE, FAN, *HEATS)

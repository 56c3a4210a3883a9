"""Settings of a measurement of collectives: defaults, limits and checks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from base.figures import figure
from measure import placements
from measure.collectives.definitions import WIDTH, CollectiveOperation, extent
from measure.envelope import Json, Row
from measure.kinds import TORCH_IMAGE, MeasuredSite, SettingsError

MOST_BYTES = 2**30
"""Largest array: a rank holds two of them."""
MOST_SIZES = 40
MOST_ITERATIONS = 10_000
MOST_REPETITIONS = 100
MOST_POINT_S = 600.0
EMULATED_SIZES = (2**12, 2**22, 4)
"""Least, largest and factor on the rack, whose links carry some 30 MB/s."""
REAL_SIZES = (2**10, 2**28, 4)
FRAMEWORKS = ("torch", "tensorflow")
TENSORFLOW_HAS = (CollectiveOperation.ALL_REDUCE, CollectiveOperation.ALL_GATHER)
AVERAGES = ("mean", "min", "max")
"""nccl-tests' ``-a`` 1, 2 and 3: over ranks."""
_SIZE = re.compile(r"(\d{1,12})([kmg]?)(?:i?b)?", re.IGNORECASE)
_SPLIT = re.compile(r"(mod|div)(\d{1,4})", re.IGNORECASE)
_SCALE = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_KNOWN = frozenset(
    {
        *("operations", "sizes", "iterations", "repetitions", "warm_up", "point_s", "framework"),
        *("image", "check", "placements", "ranks", "together", "average"),
    }
)


def complete(given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
    """Return all settings with their defaults. Raises SettingsError."""
    for name in given:
        if name not in _KNOWN:
            raise SettingsError(
                str(name)[:40], "no such setting", f"there are: {', '.join(sorted(_KNOWN))}"
            )
    framework = _one_of(given, "framework", FRAMEWORKS)
    operations = _operations(given.get("operations"), framework)
    together = _together(given.get("together"), framework)
    default = EMULATED_SIZES if fabric.emulated else REAL_SIZES
    check = given.get("check", True)
    if not isinstance(check, bool):
        raise SettingsError("check", "is not true or false")
    return {
        "operations": operations,
        "sizes": _sizes(given.get("sizes"), default),
        "iterations": whole(given, "iterations", 20, 1, MOST_ITERATIONS),
        "repetitions": whole(given, "repetitions", 5, 1, MOST_REPETITIONS),
        "warm_up": whole(given, "warm_up", 5, 0, MOST_ITERATIONS),
        "point_s": seconds(given, "point_s", 10.0, MOST_POINT_S),
        "framework": framework,
        "image": _image(given.get("image"), framework),
        "check": check,
        "placements": placements.read(given.get("placements"), fabric, ["reordered"]),
        "ranks": _ranks(given.get("ranks"), fabric),
        "together": together,
        "average": _one_of(given, "average", AVERAGES),
    }


def size_of(text: str) -> int:
    """Return the bytes of ``4k``, ``1m`` or ``512``; k is 1,024. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text[:20]!r} is not a size such as 4k or 1m")
    return int(found[1]) * _SCALE[found[2].lower()]


def split(together: str, ranks: int) -> list[list[int]]:
    """Return the groups of ranks that measure side by side, as NCCL_TESTS_SPLIT does.

    ``mod2`` puts ranks with the same remainder into a group, ``div2`` those with the same
    quotient; nothing is one group.
    """
    found = _SPLIT.fullmatch(together)
    if not found:
        return [list(range(ranks))]
    by, number = found[1].lower(), int(found[2])
    groups: dict[int, list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(rank % number if by == "mod" else rank // number, []).append(rank)
    return [groups[key] for key in sorted(groups)]


def whole(given: Mapping[str, Json], name: str, default: int, least: int, most: int) -> int:
    """Return a whole number. Raises SettingsError outside its limits."""
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(name, f"is not a whole number from {least} to {most}")
    return value


def seconds(given: Mapping[str, Json], name: str, default: float, most: float) -> float:
    """Return a time. Raises SettingsError unless it is above 0 and at most ``most``."""
    value = given.get(name, default)
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if not sound or not math.isfinite(value) or not 0 < value <= most:
        raise SettingsError(
            name, f"is not a number of seconds above 0 and at most {figure(most, 6)}"
        )
    return float(value)


def words(value: Json, name: str) -> list[str]:
    """Return a list of words, given as a list or with commas. Raises SettingsError."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise SettingsError(name, "is not a list of words")
    return list(dict.fromkeys(value))


def _operations(value: Json, framework: str) -> list[str]:
    names = words(
        value if value is not None else [CollectiveOperation.ALL_REDUCE.value], "operations"
    )
    for name in names:
        if name not in set(CollectiveOperation):
            known = ", ".join(CollectiveOperation)
            raise SettingsError("operations", f"unknown operation {name[:40]!r}", f"one of {known}")
        if framework == "tensorflow" and name not in TENSORFLOW_HAS:
            raise SettingsError(
                "operations",
                f"TensorFlow's strategy has no {name}",
                "use the framework torch, or one of: " + ", ".join(TENSORFLOW_HAS),
            )
    if not names:
        raise SettingsError("operations", "is empty")
    return names


def _sizes(value: Json, default: tuple[int, int, int]) -> list[int]:
    hint = "for example 4k..4m, 4k..4m*2, or a list of sizes"
    try:
        if value is None:
            sizes = _steps(*default)
        elif isinstance(value, str) and ".." in value:
            least, _, rest = value.partition("..")
            most, _, factor = rest.partition("*")
            sizes = _steps(size_of(least), size_of(most), int(factor or 4))
        elif isinstance(value, str | list):
            given = value.split(",") if isinstance(value, str) else value
            sizes = sorted({_size(one) for one in given})
        else:
            raise ValueError("is neither text nor a list")
    except (TypeError, ValueError) as error:
        raise SettingsError("sizes", str(error), hint) from error
    if not sizes or len(sizes) > MOST_SIZES:
        raise SettingsError("sizes", f"has not 1 to {MOST_SIZES} sizes", hint)
    if sizes[0] < WIDTH or sizes[-1] > MOST_BYTES:
        raise SettingsError("sizes", f"are not all from {WIDTH} B to {MOST_BYTES} B", hint)
    return sizes


def _size(value: Json) -> int:
    if isinstance(value, str):
        return size_of(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.20} is not a size")
    return value


def _steps(least: int, most: int, factor: int) -> list[int]:
    if least < 1 or factor < 2 or most < least:
        raise ValueError("a range goes up from 1 B at least, by a factor of 2 at least")
    sizes = [least]
    while sizes[-1] * factor <= most and len(sizes) <= MOST_SIZES:
        sizes.append(sizes[-1] * factor)
    return sizes


def _together(value: Json, framework: str) -> str:
    text = {None: "", False: "", True: "mod2"}.get(value, value) if _plain(value) else None
    if not isinstance(text, str) or (text and not _SPLIT.fullmatch(text)):
        raise SettingsError(
            "together", "is not a split such as mod2 or div3", "see NCCL_TESTS_SPLIT of nccl-tests"
        )
    if text and framework == "tensorflow":
        raise SettingsError(
            "together", "TensorFlow's strategy has no groups", "use the framework torch"
        )
    if text and int(text[3:]) < 1:
        raise SettingsError("together", "is not a split into one part or more")
    return text.lower()


def _plain(value: Json) -> bool:
    return value is None or isinstance(value, bool | str)


def _ranks(value: Json, fabric: MeasuredSite) -> list[int]:
    most = len(fabric.places)
    if most < 2:
        raise SettingsError(
            "endpoints", f"a collective needs 2 endpoints, not {most}", "name more idle endpoints"
        )
    if value is None:
        return [most]
    if isinstance(value, str):
        value = [int(word) if word.strip().isdigit() else word for word in value.split(",")]
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list) or not value or not all(_rank(one, most) for one in value):
        raise SettingsError("ranks", f"is not a list of numbers from 2 to {most}")
    return sorted(set(value))


def _rank(value: Json, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= most


def _image(value: Json, framework: str) -> str:
    if value is None:
        return TORCH_IMAGE if framework == "torch" else ""
    if not isinstance(value, str) or len(value) > 500:
        raise SettingsError("image", "is not the name of an image")
    return value


def _one_of(
    given: Mapping[str, Json],
    name: Literal["framework", "average"],
    choices: Sequence[str],
) -> str:
    value = given.get(name, choices[0])
    if value not in choices:
        raise SettingsError(name, f"{value!r:.40} is not one of {', '.join(choices)}")
    return str(value)


def extents(settings: Row, ranks: Sequence[int]) -> list[list[tuple[str, int, int]]]:
    """Return (operation, S, count) of every point of each group, given their numbers of ranks.

    Groups go through their points side by side, so a size that is empty in one is left out.
    """
    points: list[list[tuple[str, int, int]]] = [[] for _ in ranks]
    for name in settings["operations"]:
        for size in settings["sizes"]:
            arrays = [extent(CollectiveOperation(name), size, number) for number in ranks]
            if all(array.count for array in arrays):
                for own, array in zip(points, arrays, strict=True):
                    own.append((str(name), array.size, array.count))
    return points

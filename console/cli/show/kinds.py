"""The kinds of objects that ``get`` lists: their names, columns and cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.cli.errors import usage
from console.cli.show import advice
from console.cli.show.text import NONE, age, names, percent, rate, size, spread, written
from readings.catalogue import of
from readings.reading import Object, Reading

Document = dict[str, Any]
Cell = Callable[[Document], object]


def measured(kind: Object, found: Sequence[Document | None]) -> dict[str, Reading]:
    """Return, by their columns, a kind of objects' readings of which any of these has a value."""
    return {
        reading.column: reading
        for reading in of(kind)
        if reading.column and any(one and one.get(reading.name) is not None for one in found)
    }


@dataclass(slots=True, frozen=True)
class PartsTable:
    """A second table, of the parts that the objects have in the list ``field``."""

    field: str
    columns: Mapping[str, Cell]
    """A cell gets its part, with ``of``: the object it belongs to."""

    def rows(self, items: Iterable[Document]) -> list[list[object]]:
        """Return the cells of all parts of these objects."""
        parts = ({**part, "of": item} for item in items for part in item.get(self.field) or ())
        return [[cell(part) for cell in self.columns.values()] for part in parts]


@dataclass(slots=True, frozen=True)
class ListedKind:
    """One kind. With ``-o wide`` the ``wide`` columns follow ``columns``."""

    plural: str
    singular: str
    columns: Mapping[str, Cell]
    wide: Mapping[str, Cell]
    name: Cell
    measured: tuple[str, Object] | None = None
    """The field that has the readings of the object, which are columns of ``-o wide`` as well."""
    parts: PartsTable | None = None
    remarks: Callable[[Sequence[Document]], Iterable[str]] = lambda items: ()
    """What is said below the table, also of an empty one."""

    def table(self, items: Sequence[Document], wide: bool) -> tuple[list[str], list[list[object]]]:
        """Return the column heads, and the cells of each object."""
        cells = self.shown(items, wide)
        return list(cells), [[cell(item) for cell in cells.values()] for item in items]

    def shown(self, items: Iterable[Document], wide: bool) -> Mapping[str, Cell]:
        """Return the columns for these objects; none for a reading that no object has."""
        if not wide:
            return self.columns
        found: dict[str, Cell] = {**self.columns, **self.wide}
        if self.measured is not None:
            field, kind = self.measured
            readings = measured(kind, [item.get(field) for item in items])
            found |= {head: _reading(field, reading) for head, reading in readings.items()}
        return found


def _field(key: str) -> Cell:
    def cell(item: Document) -> object:
        value = item.get(key)
        return NONE if value is None or value == "" else value

    return cell


def _since(key: str) -> Cell:
    def cell(item: Document) -> object:
        moment = item.get(key)
        return NONE if moment is None else age(time.time() - moment)

    return cell


def _yes(key: str) -> Cell:
    return lambda item: "yes" if item.get(key) else "no"


def _image_name(item: Document) -> object:
    return item["names"][0] if item["names"] else NONE


def _image_id(item: Document) -> str:
    return str(item["image_id"]).removeprefix("sha256:")[:12]


def _reading(field: str, reading: Reading) -> Cell:
    return lambda item: written(reading, (item.get(field) or {}).get(reading.name))


def _list(key: str) -> Cell:
    return lambda item: names(item.get(key) or ())


def _rate(key: str) -> Cell:
    return lambda item: rate(item.get(key))


def _percent(key: str) -> Cell:
    return lambda item: percent(item.get(key))


def _clock(key: str) -> Cell:
    return lambda item: time.strftime("%H:%M:%S", time.localtime(item[key]))


def _placed(key: str) -> Cell:
    """A value that is defined only while the job has endpoints."""
    return lambda item: item[key] if item.get("endpoints") else NONE


def _job_reason(item: Document) -> object:
    held = item.get("transaction")
    return item.get("reason") or (f"regroup {held} in progress" if held else NONE)


def _engine_job(item: Document) -> object:
    told = item.get("engine")
    return f"{told['engine']} {told['id']} {told['title']}".strip() if told else NONE


def _size(key: str) -> Cell:
    return lambda item: size(item.get(key))


def _used(item: Document) -> object:
    total, free = item.get("total_bytes"), item.get("free_bytes")
    return size(None if total is None or free is None else max(0, total - free))


def _kept_for(item: Document) -> object:
    """Return how long an unused directory stays."""
    end = item.get("kept_until")
    return NONE if end is None else age(end - time.time())


def _home(item: Document) -> object:
    return item.get("home") or "dark"


_RATES: Mapping[str, Cell] = {
    "RX": _rate("rx_bps"),
    "TX": _rate("tx_bps"),
    "UTIL": _percent("utilisation"),
}

KINDS: Sequence[ListedKind] = (
    ListedKind(
        "jobs",
        "job",
        {
            "NAME": _field("name"),
            "STATE": _field("state"),
            "GPUS": _field("count"),
            "SPREAD": lambda item: spread(item.get("spread")),
            "SPAN": _placed("span"),
            "RING": _placed("ring_crossings"),
            "AGE": _since("submitted_at"),
            "REASON": _job_reason,
        },
        {
            "PROJECT": _field("project"),
            "USER": _field("user"),
            "LOCALITY": _field("locality"),
            "POLICY": _field("policy"),
            "RANKS": _list("endpoints"),
            **_RATES,
            "RESTARTS": _field("restarts"),
            "ENGINE": _engine_job,
            "IMAGE": _field("image"),
        },
        _field("name"),
    ),
    ListedKind(
        "endpoints",
        "endpoint",
        {
            "NAME": _field("name"),
            "STATE": _field("state"),
            "HOME": _home,
            "PORT": _field("port"),
            "JOB": _field("job"),
            "RANK": _field("rank"),
            "SERVER": _field("server"),
            "MODEL": _field("model"),
            "REASON": _field("reason"),
        },
        {
            "FIBER": _field("fiber"),
            "IP": _field("ip"),
            "MAC": _field("mac"),
            "MEMORY": lambda item: size(item.get("memory_bytes") or None),
            "EMULATED": _yes("emulated"),
            **_RATES,
        },
        _field("name"),
        ("gpu", Object.GPU),
    ),
    ListedKind(
        "aggregators",
        "aggregator",
        {
            "NAME": _field("name"),
            "CONNECTED": _yes("connected"),
            "PORTS": _field("size"),
            "USED": _field("used"),
            "FREE": _field("free"),
            "ENDPOINTS": _list("endpoints"),
            "JOBS": _list("jobs"),
        },
        {
            "DPID": _field("dpid"),
            "MODEL": _field("model"),
            "TABLES": _field("tables"),
            "METADATA": _field("metadata_bits"),
        },
        _field("name"),
        ("readings", Object.AGGREGATOR),
    ),
    ListedKind(
        "switches",
        "switch",
        {
            "NAME": _field("name"),
            "CONNECTED": _yes("connected"),
            "VENDOR": _field("vendor"),
            "MODEL": _field("model"),
            "PORTS": _field("ports"),
            "CIRCUITS": _field("circuits"),
            "FOREIGN": _field("foreign_circuits"),
            "ERROR": _field("error"),
        },
        {"URL": _field("url"), "SERIAL": _field("serial"), "FIRMWARE": _field("firmware")},
        _field("name"),
        ("readings", Object.SWITCH),
    ),
    ListedKind(
        "circuits",
        "circuit",
        {
            "SWITCH": _field("switch"),
            "A": _field("a"),
            "B": _field("b"),
            "STATE": _field("state"),
            "ENDPOINT": _field("endpoint"),
            "AGGREGATOR": _field("aggregator"),
            "PORT": _field("aggregator_port"),
        },
        {"DUPLEX": _yes("duplex"), "NAME": _field("name"), "OWNER": _field("owner")},
        lambda item: item.get("name") or f"{item['switch']}/{item['a']}",
    ),
    ListedKind(
        "containers",
        "container",
        {
            "NAME": _field("name"),
            "STATE": _field("state"),
            "JOB": _field("job"),
            "RANK": _field("rank"),
            "ENDPOINT": _field("endpoint"),
            "SERVER": _field("server"),
            "EXIT": _field("exit_code"),
            "AGE": _since("started_at"),
            "REASON": _field("reason"),
        },
        {
            "EPOCH": _field("epoch"),
            **_RATES,
            "MEMORY": lambda item: size(item.get("memory_bytes")),
            "SOURCE": _field("source"),
            "ID": lambda item: str(item.get("container_id") or NONE)[:12],
        },
        _field("name"),
        ("gpu", Object.GPU),
    ),
    ListedKind(
        "images",
        "image",
        {
            "SERVER": _field("server"),
            "NAME": _image_name,
            "ID": _image_id,
            "SIZE": lambda item: size(item["size_bytes"]),
            "JOBS": _list("jobs"),
            "USED": _since("used_at"),
        },
        {"NAMES": _list("names")},
        lambda item: f"{item['server']}/{_image_id(item)}",
    ),
    ListedKind(
        "events",
        "event",
        {
            "ID": _field("id"),
            "TIME": _clock("time"),
            "SEVERITY": _field("severity"),
            "OBJECT": _field("object"),
            "REASON": _field("reason"),
            "MESSAGE": _field("message"),
        },
        {"EPOCH": _field("epoch")},
        _field("id"),
    ),
    ListedKind(
        "nodes",
        "node",
        {
            "NAME": _field("name"),
            "REACHABLE": _yes("reachable"),
            "AGENT": _field("agent"),
            "ENDPOINTS": _list("endpoints"),
            "JOBS": _list("jobs"),
            "CONTAINERS": _field("containers"),
        },
        {},
        _field("name"),
        ("readings", Object.SERVER),
    ),
    ListedKind(
        "volumes",
        "volume",
        {
            "SERVER": _field("server"),
            "NAME": _field("name"),
            "MODE": _field("mode"),
            "PER": _field("per"),
            "USED": _used,
            "FREE": _size("free_bytes"),
            "QUOTA": _field("quota"),
            "PROBLEM": _field("problem"),
        },
        {
            "PROJECTS": _list("projects"),
            "FILESYSTEM": _field("filesystem"),
            "READ": _since("read_at"),
        },
        lambda item: f"{item['server']}/{item['name']}",
        parts=PartsTable(
            "data",
            {
                "SERVER": lambda part: part["of"]["server"],
                "VOLUME": lambda part: part["of"]["name"],
                "PROJECT": _field("project"),
                "JOB": _field("job"),
                "BYTES": _size("bytes"),
                "FILES": _field("files"),
                "QUOTA": _size("quota_bytes"),
                "AGE": _since("created_at"),
                "LAST-USED": _since("used_at"),
                "USED-BY": _list("used_by"),
                "KEPT-FOR": _kept_for,
            },
        ),
    ),
    ListedKind(
        "measurements",
        "measurement",
        {
            "ID": _field("id"),
            "TYPE": _field("type"),
            "STATE": _field("state"),
            "ENDPOINTS": lambda item: len(item["endpoints"]),
            "VALID": lambda item: NONE if item["valid"] is None else _yes("valid")(item),
            "AGE": _since("submitted_at"),
            "REASON": lambda item: (
                _field("reason")(item)
                if not item["invalid_because"]
                else item["invalid_because"][0]
            ),
        },
        {"USER": _field("user"), "PROJECT": _field("project"), "ON": _list("endpoints")},
        lambda item: item["id"],
    ),
    ListedKind(
        "predictions",
        "prediction",
        {
            "ID": _field("id"),
            "JOB": _field("job"),
            "CAUSE": _field("cause"),
            "STATE": _field("state"),
            "BEFORE": lambda item: advice.step(item.get("step_before_s")),
            "PREDICTED": lambda item: advice.step(item.get("step_s")),
            "MEASURED": lambda item: advice.step(item.get("measured_s")),
            "ERROR": advice.error,
            "AGE": _since("made_at"),
        },
        {
            "HOMES": lambda item: advice.spans(item.get("homes") or {}),
            "BASIS": lambda item: "; ".join(item.get("basis") or ()) or NONE,
        },
        _field("id"),
        remarks=advice.unpredicted,
    ),
    ListedKind(
        "drains",
        "drain",
        {
            "OBJECT": _field("object"),
            "STATE": _field("state"),
            "AGE": _since("since"),
            "JOBS": lambda item: names(list(item["jobs"])),
        },
        {
            "WAITS-FOR": lambda item: (
                "; ".join(f"{job}: {why}" for job, why in item["jobs"].items()) or NONE
            )
        },
        _field("object"),
    ),
    ListedKind(
        "rollouts",
        "rollout",
        {
            "ID": _field("id"),
            "STATE": _field("state"),
            "DONE": lambda item: f"{item['done']}/{item['batches']}",
            "MAX-DARK": _field("max_dark"),
            "AGE": _since("started_at"),
            "RESULT": lambda item: item["result"] or NONE,
        },
        {
            "PLAN": _field("plan_id"),
            "PAUSES": lambda item: (
                ", ".join(f"{job} {n}" for job, n in item["pauses"].items()) or NONE
            ),
            "TRANSACTIONS": lambda item: names(item["transactions"]),
        },
        _field("id"),
    ),
    ListedKind(
        "secrets",
        "secret",
        {"PROJECT": _field("project"), "NAME": _field("name")},
        {},
        lambda item: f"{item['project']}/{item['name']}",
    ),
)


def find(word: str) -> ListedKind:
    """Return the kind by its singular or plural; CliError if it is unknown."""
    for kind in KINDS:
        if word in (kind.plural, kind.singular):
            return kind
    known = ", ".join(kind.plural for kind in KINDS)
    if word in ("gpu", "gpus"):
        known += "; a GPU is an endpoint"
    from sitefile.wording import meant  # noqa: PLC0415 - start-up time

    guess = meant(word, [name for kind in KINDS for name in (kind.plural, kind.singular)])
    raise usage(f"{word!r} is not a kind of object{guess}", f"one of: {known}")


def split(word: str, name: str | None) -> tuple[ListedKind, str | None]:
    """Read ``job red`` or ``job/red``."""
    if name is None and "/" in word:
        word, _, name = word.partition("/")
    return find(word), name

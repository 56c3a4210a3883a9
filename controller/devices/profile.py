"""What a packet switch is and can do, as measured on it, and what its site lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from sitefile import CabledSite

Outcome = Literal["same", "altered", "refused", "unknown"]
"""Of a trial rule: read back as written, not so, refused, or not known for want of an answer."""
Severity = Literal["info", "warning", "error"]
METADATA_NEEDED = 64
"""Bits of metadata that the rules of jobs write and match."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TableFacts:
    """What the switch says of one table of the pipeline."""

    table: int
    max_entries: int
    metadata_match: int
    """Bits that it says it matches, as a mask."""
    metadata_write: int
    matches: tuple[str, ...]
    """The pipeline's fields that it says it matches, sorted."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Trial:
    """One rule or group that was tried on the switch and removed."""

    name: str
    outcome: Outcome
    detail: str = ""
    """The refusal."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Profile:
    """One packet switch as measured. None is a fact that it did not answer."""

    manufacturer: str = ""
    hardware: str = ""
    software: str = ""
    serial: str = ""
    tables: int | None = None
    """Number of tables that it describes; None when it describes none."""
    facts: tuple[TableFacts, ...] = ()
    """Of the pipeline's tables."""
    trials: tuple[Trial, ...] = ()
    metadata_bits: int | None = None
    """Widest metadata that was read back from a trial as written, and matched; 0: none was."""
    barrier: bool | None = None
    """Whether all rules were readable right after the barrier's reply."""
    durations: bool | None = None
    """Whether port counters come with the port's age."""

    @property
    def model(self) -> str:
        """Hardware and software in one line; empty when unknown."""
        return " ".join(word for word in (self.hardware, self.software) if word)


@dataclass(slots=True, frozen=True, kw_only=True)
class Finding:
    """One thing that is missing or unknown: what follows from it, and what mends it."""

    fact: str
    severity: Severity
    text: str
    mend: str = ""


def worst_case(site: CabledSite, aggregator: str) -> tuple[int, int, int]:
    """Return an upper bound on the rules in each table: one job of all the site's endpoints."""
    n = len(site.endpoints)
    arrivals = max(1, sum(aggregator in (u.a.device, u.b.device) for u in site.uplinks))
    return 2 * n * arrivals + n + 3, n + 2, 2 * n + 1


def judge(profile: Profile, rules: tuple[int, int, int]) -> tuple[Finding, ...]:
    """Return what is missing for the pipeline; ``rules``: the worst case of each table."""
    return (
        *_of_metadata(profile),
        *_of_trials(profile),
        *_of_room(profile, rules),
        *_rest(profile),
    )


def differences(before: Profile, after: Profile) -> tuple[str, ...]:
    """Return in words what changed between two profiles of one switch, of what is known now."""
    changed = []
    for field in fields(Profile):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new or new in (None, (), ""):
            continue
        if field.name == "trials":
            known = {trial.name: trial.outcome for trial in before.trials}
            changed += [
                f"{t.name}: {known.get(t.name, 'untried')} -> {t.outcome}"
                for t in after.trials
                if t.outcome not in ("unknown", known.get(t.name))
            ]
        elif field.name == "facts":
            changed.append("the features of its tables")
        else:
            changed.append(f"{field.name}: {'unknown' if old is None else old} -> {new}")
    return tuple(changed)


def _of_metadata(profile: Profile) -> Iterator[Finding]:
    bits = profile.metadata_bits
    if bits is None:
        yield Finding(
            fact="metadata",
            severity="warning",
            text="the width of metadata is unknown: it did not answer the trial",
            mend="probe again once it is idle",
        )
    elif bits < METADATA_NEEDED:
        yield Finding(
            fact="metadata",
            severity="error",
            text=f"it keeps {bits} bits of metadata, a job's tag has {METADATA_NEEDED}: "
            "rules of jobs are refused or altered",
            mend="use a switch or a pipeline with wider metadata",
        )
    said = [f for f in profile.facts if f.metadata_write or f.metadata_match]
    if bits is not None and any(
        max(f.metadata_write.bit_count(), f.metadata_match.bit_count()) > bits for f in said
    ):
        yield Finding(
            fact="features",
            severity="info",
            text=f"its features promise more metadata than the {bits} bits that the trial found",
            mend="the trial counts",
        )


_TRIALS = {
    "admit_ipv4": ("frames of endpoints are never admitted", "allow the fields in table 0"),
    "admit_arp": ("ARP of endpoints is never admitted", "allow arp_spa and arp_sha in table 0"),
    "probed": ("endpoints cannot be probed, so no light qualifies", "allow arp_op in table 0"),
    "neighbour": ("ARP requests do not reach the endpoint asked for", "allow arp_tpa in table 1"),
    "roce": ("RoCE traffic gets no class of its own", "allow udp_dst and set_field ip_dscp"),
    "queue": ("RoCE traffic has no queue of its own", "configure queue 1 on every port"),
    "group": ("several uplinks between aggregators cannot be used", "enable SELECT groups"),
    "group_watch": (
        "a dead uplink keeps its share of the flows, and each audit finds the group different",
        "use firmware that keeps watch_port in SELECT groups",
    ),
}


def _of_trials(profile: Profile) -> Iterator[Finding]:
    for trial in profile.trials:
        if trial.outcome == "same":
            continue
        consequence, mend = _TRIALS[trial.name]
        if trial.outcome == "unknown":
            why = f" ({trial.detail})" if trial.detail else ""
            text, mend = f"{trial.name} is unknown{why}", "probe again once it is idle"
        else:
            why = "refused" if trial.outcome == "refused" else "read back altered"
            text = f"{trial.name} is {why}{trial.detail and f' ({trial.detail})'}: {consequence}"
        severity: Severity = (
            "warning"
            if trial.outcome == "unknown" or trial.name in ("roce", "queue", "group", "group_watch")
            else "error"
        )
        yield Finding(fact=trial.name, severity=severity, text=text, mend=mend)


def _of_room(profile: Profile, rules: tuple[int, int, int]) -> Iterator[Finding]:
    for facts in profile.facts:
        need = rules[facts.table]
        if facts.max_entries < need:
            yield Finding(
                fact="room",
                severity="warning",
                text=f"table {facts.table} holds {facts.max_entries} rules; one job of all "
                f"endpoints takes up to {need}",
                mend="give the table more entries in the switch's pipeline settings",
            )


def _rest(profile: Profile) -> Iterator[Finding]:
    if profile.barrier is False:
        yield Finding(
            fact="barrier",
            severity="error",
            text="rules appear only after the barrier's reply: light may move before its flows",
            mend="use firmware whose barrier waits for the tables",
        )
    if profile.durations is False:
        yield Finding(
            fact="durations",
            severity="info",
            text="port counters come without the port's age: rates are by the controller's clock,"
            " and less exact",
            mend="use firmware that reports port durations",
        )
    if not profile.model:
        yield Finding(fact="model", severity="info", text="it does not say what it is", mend="")

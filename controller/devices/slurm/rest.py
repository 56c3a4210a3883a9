"""Slurm by slurmrestd: HTTP over a socket of this machine, or HTTPS, with a JSON Web Token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from controller.devices.observed import ObservedError
from controller.devices.slurm.documents import (
    Body,
    clean,
    document_of,
    items_of,
    mapping,
    text_of,
    texts_of,
)
from controller.devices.slurm.token import TokenFile
from controller.devices.slurm.transport import (
    JOBS_BYTES,
    NO_JOB,
    NO_JOBS,
    NO_NODE,
    NO_SUCH_NODE,
    OBJ,
    OVER,
    STATES_BYTES,
    fault,
    late,
    too_long,
)

TIMEOUT_S = 15.0
"""slurmrestd itself gives slurmctld about 10 s."""
JOBS_TIMEOUT_S = 60.0
AT_ONCE = 4
VERSIONS = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Newest first; Slurm 23.11 has v0.0.40."""
_ERROR_BYTES = 2**20


@dataclass(slots=True, frozen=True)
class _Question:
    """A request below ``/slurm/VERSION/`` and the bounds of its answer."""

    path: str
    what: str
    most: int = _ERROR_BYTES
    """Bytes of the answer."""
    fields: Mapping[str, str] | None = None
    """They are posted; None gets."""
    limit_s: float | None = None


class RestTransport:
    """Talks to slurmrestd in the newest version that both know."""

    def __init__(
        self, api: str, token: TokenFile, user: str = "", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """``api`` is ``unix:/PATH`` or a URL. Reads certificates for https: not for the loop."""
        self._token = token
        self._user = user
        self._timeout_s = timeout_s
        self._version = ""
        unix = api.removeprefix("unix:") if api.startswith("unix:") else None
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=unix, verify=api.startswith("https:")),
            base_url="http://slurmrestd" if unix else api,
            follow_redirects=False,
            timeout=None,  # noqa: S113 - _call has its own limit for the whole exchange
        )
        self._slots = asyncio.Semaphore(AT_ONCE)

    @property
    def name(self) -> str:
        """What it is, with the version that it speaks."""
        return f"slurmrestd {self._version}".strip()

    async def release(self) -> str:
        """Return slurmrestd's release, which is that of its Slurm."""
        body = await self._get(_Question("ping/", "ping"))
        try:
            meta = mapping(document_of(body).get("meta"), "meta")
            return clean(text_of(mapping(meta.get("slurm"), "meta.slurm"), "release"), 40)
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"ping: {error}") from error

    async def states(self) -> Mapping[int, str]:
        """Return for every job its states; tasks of an array that wait are counted."""
        body = await self._get(_Question("jobs/state/", "states of jobs", STATES_BYTES))
        try:
            return await asyncio.to_thread(states_of, body)
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"states of jobs: {error}") from error

    async def job(self, number: int) -> Body:
        """Return the document of one job."""
        what = f"job {number}"
        status, body = await self._ask(_Question(f"job/{number}", what, STATES_BYTES))
        if status == 404 and NO_JOB in _words(body):
            return NO_JOBS
        return _good(status, body, what)

    async def jobs(self) -> Body:
        """Return the document of all jobs."""
        return await self._get(_Question("jobs/", "all jobs", JOBS_BYTES, limit_s=JOBS_TIMEOUT_S))

    async def nodes(self) -> Body:
        """Return the document of all nodes."""
        return await self._get(_Question("nodes/", "nodes", STATES_BYTES))

    async def comment(self, number: int, text: str) -> bool:
        """Set the job's admin_comment."""
        what = f"comment of job {number}"
        fields = {"admin_comment": text}
        status, body = await self._ask(_Question(f"job/{number}", what, fields=fields))
        if status >= 400 and any(words in _words(body) for words in (NO_JOB, OVER)):
            return False
        _good(status, body, what)
        return True

    async def place(self, nodes: str, unit: str) -> None:
        """Put nodes under a unit of the topology; Slurm before 25.05 ignores it."""
        what = f"topology of {clean(nodes, 80)}"
        path = f"node/{quote(nodes, safe='')}"
        body = await self._get(_Question(path, what, fields={"topology_str": unit}))
        if b"Ignoring unknown field" in b"".join(body):
            raise ObservedError("invalid", OBJ, f"{what}: this Slurm cannot change it alone")

    async def reconfigure(self) -> None:
        """Make Slurm read its files again."""
        await self._get(_Question("reconfigure/", "reconfigure"))

    async def administrates(self) -> bool:
        """Whether a change of a node that does not exist is refused for the node's name."""
        question = _Question(f"node/{NO_SUCH_NODE}", "rights", fields={"comment": ""})
        status, body = await self._ask(question)
        words = _words(body)
        if status < 400 or NO_NODE in words:
            return True
        if (refused := fault(words, "rights")).code == "forbidden":
            return False
        raise refused

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _get(self, question: _Question) -> Body:
        return _good(*await self._ask(question), question.what)

    async def _ask(self, question: _Question) -> tuple[int, Body]:
        """Ask in the version agreed on; agree on one first, and again when it has gone."""
        if self._version:
            status, body = await self._call(self._version, question)
            if not _unknown_path(status, body):
                return status, body
        self._version = await self._agree()
        return await self._call(self._version, question)

    async def _agree(self) -> str:
        """Return the newest version, found by asking for an address that costs little."""
        for version in VERSIONS:
            answer = await self._call(version, _Question("jobs/state/", "version", STATES_BYTES))
            if not _unknown_path(*answer):
                return version
        text = f"slurmrestd speaks none of {VERSIONS[-1]} to {VERSIONS[0]} for slurmctld"
        raise ObservedError("invalid", OBJ, text, "start it with -s slurmctld, from Slurm 23.11")

    async def _call(self, version: str, question: _Question) -> tuple[int, Body]:
        limit_s = question.limit_s or self._timeout_s
        try:
            async with self._slots, asyncio.timeout(limit_s):
                return await self._exchange(f"/slurm/{version}/{question.path}", question)
        except TimeoutError as error:
            raise late(question.what, limit_s) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = f"{question.what}: slurmrestd does not answer ({type(error).__name__})"
            hint = "see whether slurmrestd runs, and whether lightloom may use its socket"
            raise ObservedError("unavailable", OBJ, text, hint) from error

    async def _exchange(self, path: str, question: _Question) -> tuple[int, Body]:
        headers = {"X-SLURM-USER-TOKEN": await asyncio.to_thread(self._token.read)}
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        method = "GET" if question.fields is None else "POST"
        request = self._client.build_request(method, path, headers=headers, json=question.fields)
        answer = await self._client.send(request, stream=True)
        most = question.most if answer.status_code < 400 else _ERROR_BYTES
        parts, size = [], 0
        try:
            async for part in answer.aiter_bytes():
                size += len(part)
                if size > most:
                    raise too_long(question.what, most)
                parts.append(part)
        finally:
            await answer.aclose()
        return answer.status_code, parts


def states_of(body: Body) -> Mapping[int, str]:
    """Return job -> states of ``/jobs/state/``, where ``8_1`` and ``9+1`` begin with the job.

    Raises ValueError.
    """
    found: dict[int, dict[str, int]] = {}
    for item in items_of(body, "jobs"):
        job = mapping(item, "a state")
        number = job.get("job_id")
        digits = str(number).partition("_")[0].partition("+")[0]
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
            raise ValueError(f"not a job: {clean(str(number), 40)!r}")
        states = ",".join(sorted(texts_of(job, "state")))
        counts = found.setdefault(int(digits), {})
        counts[states] = counts.get(states, 0) + 1
    return {
        number: " ".join(f"{states}*{n}" for states, n in sorted(counts.items()))
        for number, counts in found.items()
    }


def _unknown_path(status: int, body: Body) -> bool:
    """Whether slurmrestd does not know an address; for a job that it does not know it says so."""
    return status == 404 and b"find requested URL" in b"".join(body)


def _good(status: int, body: Body, what: str) -> Body:
    if status >= 400:
        raise fault(_words(body), what)
    return body


def _words(body: Body) -> str:
    """Return the words of an error, whatever shape it has."""
    try:
        errors = document_of(body).get("errors")
    except ValueError:
        return b"".join(body)[:300].decode("utf-8", errors="replace")
    items = errors if isinstance(errors, list) else []
    texts = (
        str(item.get(key))
        for item in items[:4]
        if isinstance(item, dict)
        for key in ("error", "description")
        if item.get(key)
    )
    return ". ".join(text[:200] for text in texts)

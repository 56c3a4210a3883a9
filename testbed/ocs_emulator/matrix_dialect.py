"""Implements the common part of matrix TL1 dialects: a table of verbs, and refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.model import Fault, ModelError
from testbed.ocs_emulator.tl1_text import Tl1Answer, Tl1Request, refusal

# The real error tables are not public; these are the generic codes of GR-833.
_CODES = {
    Fault.NO_SUCH_PORT: "IIAC",
    Fault.SAME_PORT: "IDNV",
    Fault.BUSY: "SARB",
    Fault.NO_SUCH_CIRCUIT: "SROU",
    Fault.ACTIVE: "SNVS",
    Fault.NOT_ACTIVE: "SNVS",
}

Verb = Callable[[Tl1Request, str], Awaitable[Tl1Answer]]


class MatrixDialect:
    """Handles the verbs in ``_verbs``; ICNV for all others."""

    changing: ClassVar[frozenset[str]]
    """Verbs that change circuits."""
    reports = False

    def __init__(self, matrix: MatrixSwitch) -> None:
        self._matrix = matrix
        self._personality = matrix.model.personality
        self.sid = self._personality.sid
        self._verbs: Mapping[str, Verb] = {}

    def changes(self, request: Tl1Request) -> bool:
        """Whether a command changes circuits."""
        return request.verb in self.changing

    async def answer(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Execute one command."""
        verb = self._verbs.get(request.verb)
        if verb is None:
            return refusal("ICNV", "Input, Command Not Valid")
        command = f"{request.verb} {request.aid}"
        await self._matrix.switch.work(command, changes=self.changes(request))
        try:
            return await verb(request, user)
        except ModelError as error:
            return refusal(_CODES[error.fault], str(error))

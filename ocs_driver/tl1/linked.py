"""Implements the common part of matrix switches that speak TL1."""

from __future__ import annotations

from typing import ClassVar, Self

from ocs_driver.address import OcsAddress
from ocs_driver.base import GROUP, EventKind, OcsEvent
from ocs_driver.linked import LinkedDriver
from ocs_driver.tl1.messages import Tl1Report
from ocs_driver.tl1.session import Login, Tl1Session, Tl1Timing


class Tl1MatrixDriver(LinkedDriver):
    """One switch on one TL1 session."""

    tail: ClassVar[str] = ""
    """Suffix of the session's own commands, for dialects that require the general block."""
    _session: Tl1Session

    def __init__(
        self,
        address: OcsAddress,
        login: Login,
        *,
        group: str = GROUP,
        timing: Tl1Timing | None = None,
    ) -> None:
        super().__init__(address, group)
        self._session = Tl1Session(
            address.host,
            self._port,
            login,
            timing=timing,
            tail=self.tail,
            turns=self._turns,
            on_report=self._on_report,
            on_link=self._on_link,
        )

    @classmethod
    def from_address(cls, address: OcsAddress, password: str | None, group: str) -> Self:
        """Build a driver for ``VENDOR+tl1://user@host:port``. Raises OcsLogin without login."""
        return cls(address, Login.of(address, password), group=group)

    def _on_report(self, report: Tl1Report) -> None:
        text = " ".join((report.verb, *report.rows, *report.comments)).strip()
        self._feed.publish(OcsEvent(EventKind.REPORT, self.name, report.severity, text))

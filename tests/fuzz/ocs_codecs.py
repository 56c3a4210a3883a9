"""Coverage-guided fuzzing of everything that reads bytes from an optical switch.

Run ``python -m tests.fuzz.ocs_codecs -max_total_time=60`` with atheris installed; any
exception but ``OcsError`` is a finding. Options are libFuzzer's.
"""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["ocs_driver"]):
    from ocs_driver.calient import rows as calient
    from ocs_driver.errors import OcsError
    from ocs_driver.glimmerglass import rows as glimmerglass
    from ocs_driver.polatis import rows as polatis
    from ocs_driver.polatis import xml
    from ocs_driver.ports import parse_size
    from ocs_driver.scpi.codec import ReplyParser, parse_channels, parse_error, parse_states
    from ocs_driver.tl1.fields import parse_row
    from ocs_driver.tl1.messages import Response
    from ocs_driver.tl1.parser import Tl1Parser

_MOST_HELD = 4096


def one_input(data: bytes) -> None:
    """Let the first byte choose a codec; the rest is what the switch sent."""
    kind, rest = data[:1], data[1:]
    if kind < b"\x55":
        tl1(rest)
    elif kind < b"\xaa":
        scpi(rest)
    else:
        with contextlib.suppress(OcsError):
            text = rest.decode("latin-1")
            xml.parse_event(xml.parse(text))
            xml.parse_pairs(xml.parse_data(text, "cross-connects"))
        with contextlib.suppress(OcsError):
            xml.parse_ports(xml.parse_data(text, "opm-power"), "power")


def tl1(data: bytes) -> None:
    """Whole and cut in two, the messages must be the same; rows are read by every vendor."""
    messages = Tl1Parser(_MOST_HELD).feed(data)
    parser = Tl1Parser(_MOST_HELD)
    middle = len(data) // 2
    assert parser.feed(data[:middle]) + parser.feed(data[middle:]) == messages
    for message in messages:
        if not isinstance(message, Response):
            continue
        for read in (
            calient.circuits,
            glimmerglass.parse_circuits,
            polatis.parse_patch,
            polatis.parse_power,
        ):
            with contextlib.suppress(OcsError):
                read(message.rows)
        for row in message.rows:
            parse_row(row)


def scpi(data: bytes) -> None:
    """The same for SCPI replies."""
    replies = ReplyParser(_MOST_HELD).feed(data)
    for reply in replies:
        for read in (parse_channels, parse_error, lambda r: parse_states(r, 2), parse_size):
            with contextlib.suppress(OcsError):
                read(reply)


def main() -> None:
    """Fuzz until libFuzzer is told to stop."""
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

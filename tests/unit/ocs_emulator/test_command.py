"""The emulator as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from base.addresses import split_address

PATIENCE_S = 60


def start(listen: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "testbed.ocs_emulator"),
            *("--personality", "calient-s320", "--listen", listen),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_what_it_prints_of_ipv6_is_an_address_that_it_reads() -> None:
    process = start("[::1]:0")
    assert process.stdout is not None
    (address,) = json.loads(process.stdout.readline())["listen"].values()
    assert split_address(address)[0] == "::1"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize("listen", ["::1:3082", "[::1]:99999", "fd00::10"])
def test_bad_addresses_are_one_line(listen: str) -> None:
    process = start(listen)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("ocs emulate: ")
    assert err.count("\n") == 1

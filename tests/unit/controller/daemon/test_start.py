"""A controller that starts while its predecessor is still being buried."""

from __future__ import annotations

import fcntl
import socket
import threading
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.daemon import start
from controller.daemon.listen import PeopleOptions, api_socket


@pytest.mark.real_time
def test_what_a_dying_predecessor_holds_is_waited_for(tmp_path: Path) -> None:
    held = (tmp_path / "lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    busy = socket.create_server(("127.0.0.1", 0))
    address = "{}:{}".format(*busy.getsockname())
    for close in (held.close, busy.close):
        threading.Timer(1.5, close).start()
    with start.only_one(tmp_path), api_socket(address, PeopleOptions()) as api:
        assert api.getsockname() == ("127.0.0.1", int(address.rpartition(":")[2]))


def test_an_address_that_stays_in_use_is_an_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        pytest.raises(ServiceError, match="in use") as caught,
    ):
        api_socket("{}:{}".format(*busy.getsockname()), PeopleOptions())
    assert caught.value.code == "failed"

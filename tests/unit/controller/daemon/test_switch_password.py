"""The password of a switch comes by reference; what is wrong with the reference is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.daemon.compose import make_driver
from sitefile import PasswordRef, SwitchCable

URL = "calient+tl1://admin@127.0.0.1:3082"
CREDENTIAL = "right-horse"


def test_a_file_that_others_can_read_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(CREDENTIAL)
    file.chmod(0o644)
    switch = SwitchCable("ocs0", URL, PasswordRef(file=str(file)))
    with pytest.raises(ServiceError) as caught:
        make_driver(switch, tmp_path)
    assert caught.value.object == "switch/ocs0"
    assert str(file) in caught.value.message
    assert "0600" in caught.value.message
    assert CREDENTIAL not in str(caught.value)
    file.chmod(0o600)
    assert make_driver(switch, tmp_path)


def test_a_file_or_a_variable_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET_AT_ALL", raising=False)
    for reference in (PasswordRef(file=str(tmp_path / "none")), PasswordRef(env="NOT_SET_AT_ALL")):
        with pytest.raises(ServiceError) as caught:
            make_driver(SwitchCable("ocs0", URL, reference), tmp_path)
        assert caught.value.object == "switch/ocs0"
        assert caught.value.hint


@pytest.mark.parametrize("url", ["abacus+tl1://h:1", "calient+tl1://a:secret@h:1", "nonsense"])
def test_a_url_that_is_no_switch(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", CREDENTIAL)
    with pytest.raises(ServiceError) as caught:
        make_driver(SwitchCable("ocs0", url, None), tmp_path)
    assert caught.value.object == "switch/ocs0"
    assert "secret" not in str(caught.value)

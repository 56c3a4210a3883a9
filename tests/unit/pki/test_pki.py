from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from pki import CONTROLLER, Authority, Credentials, TrustError, agent_name, aggregator_name
from pki import authority as authority_module

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "paper", now=NOW)


def refused(directory: Path, name: str = agent_name("srv0"), now: datetime = NOW) -> TrustError:
    with pytest.raises(TrustError) as error:
        Credentials.load(directory, name, now=now)
    return error.value


def test_an_issued_certificate_is_valid_for_its_name(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue_agent("srv0", tmp_path / "a", now=NOW)
    found = Credentials.load(tmp_path / "a", agent_name("srv0"), now=NOW)
    assert found.name == issued.name == "srv0.agent.lightloom"
    assert found.expires == issued.expires == NOW + timedelta(days=397)
    assert b"PRIVATE" in found.key
    assert "PRIVATE" not in repr(found)


def test_only_the_owner_can_read_keys(authority: Authority, tmp_path: Path) -> None:
    authority.issue_controller(tmp_path / "c", now=NOW)
    for key in (tmp_path / "ca" / "ca-key.pem", tmp_path / "c" / "key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    (tmp_path / "c" / "key.pem").chmod(0o640)
    error = refused(tmp_path / "c", CONTROLLER)
    assert error.code == "forbidden"
    assert "chmod 600" in error.hint


def test_an_authority_is_never_overwritten(authority: Authority, tmp_path: Path) -> None:
    before = (tmp_path / "ca" / "ca-key.pem").read_bytes()
    with pytest.raises(TrustError) as error:
        Authority.create(tmp_path / "ca", "other", now=NOW)
    assert error.value.code == "conflict"
    assert (tmp_path / "ca" / "ca-key.pem").read_bytes() == before


def test_an_incomplete_authority_after_a_crash_can_be_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = authority_module._write

    def crash(path: Path, data: bytes, mode: int = 0o644) -> None:
        if list((tmp_path / "ca").iterdir()):
            raise KeyboardInterrupt
        write(path, data, mode)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(authority_module, "_write", crash)
        Authority.create(tmp_path / "ca", "paper", now=NOW)
    with pytest.raises(TrustError) as none:
        Authority.load(tmp_path / "ca")
    assert none.value.code == "not_found"
    Authority.create(tmp_path / "ca", "paper", now=NOW)
    Authority.load(tmp_path / "ca").issue_controller(tmp_path / "c", now=NOW)


def test_a_certificate_can_be_renewed(authority: Authority, tmp_path: Path) -> None:
    authority.issue_agent("srv0", tmp_path / "a", now=NOW, days=1)
    later = NOW + timedelta(days=2)
    assert "expired on 2026-05-02" in refused(tmp_path / "a", now=later).message
    Authority.load(tmp_path / "ca").issue_agent("srv0", tmp_path / "a", now=later)
    assert Credentials.load(tmp_path / "a", agent_name("srv0"), now=later).expires > later


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    short = Authority.create(tmp_path / "ca", "paper", now=NOW, days=10)
    assert short.issue_controller(tmp_path / "c", now=NOW).expires == NOW + timedelta(days=10)


def test_missing_files_are_reported(tmp_path: Path) -> None:
    error = refused(tmp_path)
    assert error.code == "not_found"
    assert "ca.pem" in error.object
    with pytest.raises(TrustError) as none:
        Authority.load(tmp_path)
    assert "pki init" in none.value.hint


def test_the_certificate_of_another_server_is_refused(authority: Authority, tmp_path: Path) -> None:
    authority.issue_agent("srv1", tmp_path / "a", now=NOW)
    assert "names srv1.agent.lightloom, not srv0" in refused(tmp_path / "a").message


def test_the_certificate_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    authority.issue_agent("srv0", tmp_path / "a", now=NOW)
    Authority.create(tmp_path / "ca2", "paper", now=NOW)
    (tmp_path / "a" / "ca.pem").write_bytes((tmp_path / "ca2" / "ca.pem").read_bytes())
    assert "not issued by the authority" in refused(tmp_path / "a").message


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    authority.issue_agent("srv0", tmp_path / "a", now=NOW)
    authority.issue_agent("srv0", tmp_path / "b", now=NOW)
    (tmp_path / "a" / "key.pem").write_bytes((tmp_path / "b" / "key.pem").read_bytes())
    assert "does not match key.pem" in refused(tmp_path / "a").message


def test_a_clock_that_is_behind_is_named(authority: Authority, tmp_path: Path) -> None:
    authority.issue_agent("srv0", tmp_path / "a", now=NOW)
    early = refused(tmp_path / "a", now=NOW - timedelta(days=1))
    assert "clock" in early.hint


@pytest.mark.parametrize("server", ["", "SRV0", "../x", "a" * 64, "srv0\n", "srv 0"])
def test_an_invalid_name_gets_no_certificate(
    authority: Authority, tmp_path: Path, server: str
) -> None:
    with pytest.raises(TrustError) as error:
        authority.issue_agent(server, tmp_path / "a", now=NOW)
    assert error.value.code == "invalid"
    assert not (tmp_path / "a").exists()


def test_invalid_data_is_not_a_certificate(authority: Authority, tmp_path: Path) -> None:
    authority.issue_agent("srv0", tmp_path / "a", now=NOW)
    (tmp_path / "a" / "cert.pem").write_text("rubbish")
    assert refused(tmp_path / "a").code == "invalid"


def test_an_aggregators_certificate_cannot_impersonate_a_controller(
    authority: Authority, tmp_path: Path
) -> None:
    """Switches check the purpose and not the name: Open vSwitch verifies only the chain."""
    issued = authority.issue_aggregators(["as0", "as1"], tmp_path / "s", now=NOW)
    assert issued.name == "as0.aggregator.lightloom, as1.aggregator.lightloom"
    certificate = x509.load_pem_x509_certificate((tmp_path / "s" / "cert.pem").read_bytes())
    use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    for name in ("as0", "as1"):
        Credentials.load(tmp_path / "s", aggregator_name(name), now=NOW)
    with pytest.raises(TrustError, match="not a valid aggregator name"):
        authority.issue_aggregators(["as0", "AS 1"], tmp_path / "t", now=NOW)

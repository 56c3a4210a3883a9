"""The controller's address and the caller's token.

A flag wins over the environment, that over the configuration file, that over the emulated rack
that runs on this machine, and that over the default.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from console.cli.errors import usage

DEFAULT_URL = "http://127.0.0.1:8470"
DEFAULT_TIMEOUT_S = 30.0
_KEYS = ("url", "token", "token_file", "ca_file", "timeout_s")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,9})?", re.ASCII)


@dataclass(slots=True, frozen=True)
class ConnectionSettings:
    """How to reach the controller."""

    url: str = DEFAULT_URL
    token: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Longest wait for one answer."""
    ca_file: str | None = None
    """Authority of the controller's certificate, instead of the system's."""


@dataclass(slots=True, frozen=True)
class Flags:
    """The options of the command line; None where one is absent."""

    url: str | None = None
    token: str | None = None
    timeout_s: float | None = None


def config_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the configuration file, whether it exists or not."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "lightloom" / "config.yaml"


def resolve(
    flags: Flags = Flags(), environment: Mapping[str, str] | None = None
) -> ConnectionSettings:
    """Return the settings in force; CliError when the file cannot be used."""
    env = os.environ if environment is None else environment
    file = _read(config_path(env))
    url = flags.url or env.get("LIGHTLOOM_URL") or _lane(env) or file.get("url")
    url = url or _rack() or DEFAULT_URL
    pause = flags.timeout_s or env.get("LIGHTLOOM_TIMEOUT") or file.get("timeout_s")
    url = url.rstrip("/")
    return ConnectionSettings(
        url=url,
        token=flags.token or _token(env, file) or (_local(url) if is_loopback(url) else None),
        timeout_s=_seconds(pause or DEFAULT_TIMEOUT_S),
        ca_file=env.get("LIGHTLOOM_CA_FILE") or file.get("ca_file"),
    )


def _token(env: Mapping[str, str], file: Mapping[str, str]) -> str | None:
    """Return the token that the environment or the configuration file contains or points to."""
    for token, path in (
        (env.get("LIGHTLOOM_TOKEN"), env.get("LIGHTLOOM_TOKEN_FILE")),
        (file.get("token"), file.get("token_file")),
    ):
        if token:
            return token
        if path:
            return _token_in(Path(path))
    return None


def _token_in(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {error}") from None
    if mode & 0o077:
        raise usage(f"{path} contains a token and others can read it", f"chmod 600 {path}")
    return token


def is_loopback(url: str) -> bool:
    """Whether a request to ``url`` stays on this machine, judged as the HTTP client reads it."""
    import httpx  # noqa: PLC0415 - start-up time

    try:
        host = httpx.URL(url).host
    except (httpx.InvalidURL, TypeError):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def running_racks() -> list[str]:
    """Return the addresses of the emulated racks that run on this machine."""
    from testbed.token import running_racks  # noqa: PLC0415 - only when no URL is given

    return running_racks()


def _lane(env: Mapping[str, str]) -> str | None:
    """Return the address of the rack in the lane that the environment names."""
    name = env.get("LIGHTLOOM_LANE")
    if not name:
        return None
    from testbed.token import lane_url  # noqa: PLC0415 - only when a lane is named

    url = lane_url(name)
    if url is None:
        raise usage(
            f"LIGHTLOOM_LANE={name}: no rack of that name is reached", "see: lightloom testbed list"
        )
    return url


def _rack() -> str | None:
    found = running_racks()
    return found[0] if len(found) == 1 else None


def _local(url: str) -> str | None:
    from testbed.token import local_token  # noqa: PLC0415 - only when no token is given

    return local_token(url)


def _seconds(value: float | str) -> float:
    exact = not isinstance(value, str) or _NUMBER.fullmatch(value)
    seconds = float(value) if exact else 0.0
    if not 0 < seconds <= 86400:
        raise usage(f"{value!r} is not a valid time-out", "give seconds, for example 30")
    return seconds


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {error}") from None
    import yaml  # noqa: PLC0415 - only needed when the file exists

    try:
        # Every value is text: a token that looks like a number stays as it is written.
        content = yaml.load(text, Loader=yaml.BaseLoader) or {}  # noqa: S506 - builds texts only
    except yaml.YAMLError as error:
        raise usage(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise usage(f"{path} must contain keys and values", f"known keys: {', '.join(_KEYS)}")
    for key in content:
        if key not in _KEYS:
            raise usage(f"{path}: unknown key {key!r}", f"known keys: {', '.join(_KEYS)}")
    if "token" in content and mode & 0o077:
        raise usage(f"{path} contains a token and others can read it", f"chmod 600 {path}")
    return {key: str(value) for key, value in content.items() if value}

"""``controller`` and ``agent``: verbs that run a program with its own options."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from console.cli.errors import CliError, usage
from console.cli.show import streams

if TYPE_CHECKING:
    from sitefile import CabledSite

FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings of a verb that passes all options on to its program."""


def run_program(module: str, arguments: Sequence[str]) -> None:
    """Run ``python -m module`` in this process and end with its exit status."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            streams.message(end.code + "\n")
        raise typer.Exit(
            end.code if isinstance(end.code, int) else int(end.code is not None)
        ) from None


def controller(ctx: typer.Context) -> None:
    """Run the controller in the foreground: --site FILE, see --help."""
    run_program("controller", ctx.args)


def agent(ctx: typer.Context) -> None:
    """Run a server's agent in the foreground: --server NAME, see --help.

    With ``--site FILE`` it takes its endpoints, its port and how much output it keeps from the
    site file.
    """
    run_program("container_mgr", from_site(ctx.args))


def from_site(arguments: Sequence[str]) -> list[str]:
    """Replace ``--site FILE`` by the agent's options for its server, read from the file.

    The agent itself never reads site files. Other options override the file. CliError when the
    file has no such server.
    """
    words = list(arguments)
    path = _pop(words, "--site")
    if path is None:
        return words
    from sitefile import SiteFileError, load_site  # noqa: PLC0415 - start-up time

    name = _value(words, "--server")
    if name is None:
        raise usage("--site needs --server NAME", "lightloom agent --site FILE --server srv0")
    try:
        site = load_site(Path(path))
    except SiteFileError as error:
        raise CliError("usage", str(error), object=path) from error
    if name not in {server.name for server in site.servers}:
        raise CliError(
            "not_found",
            f"site {site.name} has no server {name}",
            object=f"server/{name}",
            hint=f"it has {', '.join(server.name for server in site.servers)}",
        )
    if _value(words, "--endpoints") is None:
        words += ["--endpoints", json.dumps(served(site, name))]
    if _value(words, "--listen") is None:
        words += ["--listen", f"0.0.0.0:{site.server(name).agent.rpartition(':')[2]}"]
    for option, value in (*site.logs.options().items(), *observed(site, name)):
        if _value(words, option) is None:
            words += [option, value]
    return words


def observed(site: CabledSite, server: str) -> list[tuple[str, str]]:
    """Return the options by which a server's agent may freeze the jobs of another engine."""
    if site.engine is None:
        return []
    nodes = site.engine.nodes_with([e.name for e in site.endpoints if e.server == server])
    return [("--observe", site.engine.kind), ("--observe-nodes", ",".join(nodes))] if nodes else []


def served(site: CabledSite, server: str) -> list[dict[str, object]]:
    """Return a server's endpoints in the format of the agent's ``--endpoints``."""
    return [
        {
            "name": e.name,
            "nic": e.nic,
            "gpu_uuid": e.gpu_uuid,
            "emulated": e.emulated,
            "attach": e.attach,
        }
        for e in site.endpoints
        if e.server == server
    ]


def _value(words: Sequence[str], option: str) -> str | None:
    for index, word in enumerate(words):
        if word == option and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _pop(words: list[str], option: str) -> str | None:
    value = _value(words, option)
    if value is not None:
        kept = [w for w in words if not w.startswith(f"{option}=")]
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
        words[:] = kept
    return value

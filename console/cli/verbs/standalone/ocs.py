"""``ocs``: work with one optical switch directly, by its URL."""

from __future__ import annotations

import json
import os
import socket as socketlib
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.asking import print_answer, table
from console.cli.ask.options import OutputOption, WideOutput
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE
from console.cli.verbs.standalone.daemons import FORWARD, run_program

if TYPE_CHECKING:
    from ocs_driver import OcsError

Document = dict[str, Any]
_LIMIT_S = 120.0
"""Time limit of a verb; the inventory of a large switch takes up to a minute."""

_CONTROL_S = 5.0
"""Longest wait for an emulator to confirm a fault."""

app = typer.Typer(help="Work with one optical switch directly.", no_args_is_help=True)

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="For example calient+tl1://admin@10.0.0.5:3082")
]
PortA = Annotated[str, typer.Argument(metavar="A", help="One port, by the switch's name for it.")]
PortB = Annotated[str, typer.Argument(metavar="B", help="The other port.")]


class ConflictMode(StrEnum):
    """What may happen to circuits that use the same ports."""

    SAFE = "safe"
    UPDATE = "update"
    OVERWRITE = "overwrite"


ModeOption = Annotated[
    ConflictMode,
    typer.Option(
        help="Circuits on these ports that may be removed. safe: none; update: own; overwrite: any."
    ),
]


@app.command()
def show(url: UrlArgument, output: WideOutput = OutputFormat.TABLE) -> None:
    """Show device, ports and circuits."""
    from ocs_driver import describe  # noqa: PLC0415 - start-up time

    found = _run(describe.show(url, password=_password()))
    if output.structured:
        out.document(found, output)
        return
    out.show_table(("", ""), [(k, v or NONE) for k, v in found["device"].items()], head=False)
    ports = found["ports"]
    if output is OutputFormat.TABLE:  # omit the dark ports, of which there may be hundreds
        ports = [p for p in ports if p["health"] not in ("blocked",) or p["label"]]
        out.line(f"ports      {len(found['ports'])} ({len(ports)} shown; all with -o wide)")
    if ports:
        out.line("")
        out.show_table(
            ("PORT", "HEALTH", "IN", "OUT", "LABEL"),
            [
                (
                    p["port"],
                    p["health"],
                    _dbm(p["power_in_dbm"]),
                    _dbm(p["power_out_dbm"]),
                    p["label"] or NONE,
                )
                for p in ports
            ],
        )
    _print_circuits(found)


@app.command()
def connect(
    url: UrlArgument,
    a: PortA,
    b: PortB,
    *,
    simplex: Annotated[bool, typer.Option("--simplex", help="One way only, A to B.")] = False,
    mode: ModeOption = ConflictMode.SAFE,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a circuit between two ports and print all circuits read back."""
    from ocs_driver import Mode as DriverMode  # noqa: PLC0415 - start-up time
    from ocs_driver import describe  # noqa: PLC0415 - start-up time

    work = describe.connect(
        url, a, b, duplex=not simplex, mode=DriverMode(mode.value), password=_password()
    )
    _print_applied(_run(work), output, url)


@app.command()
def disconnect(
    url: UrlArgument,
    a: PortA,
    b: PortB,
    *,
    mode: ModeOption = ConflictMode.SAFE,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove the circuits between two ports and print all circuits read back."""
    from ocs_driver import Mode as DriverMode  # noqa: PLC0415 - start-up time
    from ocs_driver import describe  # noqa: PLC0415 - start-up time

    work = describe.disconnect(url, a, b, mode=DriverMode(mode.value), password=_password())
    _print_applied(_run(work), output, url)


@app.command(context_settings=FORWARD)
def emulate(ctx: typer.Context) -> None:
    """Run an emulated switch until interrupted: --personality P --listen HOST:PORT."""
    run_program("testbed.ocs_emulator", ctx.args)


@app.command()
def fault(
    socket: Annotated[
        Path, typer.Argument(metavar="SOCKET", help="The emulator's --control socket.")
    ],
    kind: Annotated[
        str,
        typer.Argument(
            metavar="FAULT", help="deny, stuck, dark, reboot, ...; clear ends all faults."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="such as match=ENT-CRS count=2 port=1.1.1"),
    ] = None,
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Inject a fault into an emulated switch."""
    order = {"fault": kind}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise usage(f"{setting!r} is not KEY=VALUE", "see docs/ocs.md for the faults")
        order[key] = value
    answer = _order(socket, order)
    if output.structured:
        out.document(answer, output)
    if not answer["ok"]:
        raise CliError("invalid", answer["error"], object=str(socket), hint="see docs/ocs.md")
    if not output.structured:
        out.line(f"{kind}: ordered")


@app.command()
def probe(
    url: UrlArgument,
    *,
    destructive: Annotated[
        bool, typer.Option("--destructive", help="Make and remove circuits on the spare ports.")
    ] = False,
    spare_ports: Annotated[
        str, typer.Option(metavar="P,P,P,P", help="Unused ports with light, four or more.")
    ] = "",
    out_file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.json", help="Write the personality to this file."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Measure how a switch behaves. Only reads, without --destructive."""
    from ocs_driver.probe import probe as find_out  # noqa: PLC0415 - start-up time

    ports = [port.strip() for port in spare_ports.split(",") if port.strip()]
    if destructive != bool(ports):
        raise usage(
            "--destructive and --spare-ports go together",
            "without both the probe only reads; with both it switches only those ports",
        )
    found = _run(find_out(url, password=_password(), spare_ports=ports))
    if out_file is not None:
        try:
            out_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise CliError("failed", f"{error.strerror}", object=str(out_file)) from None
    print_answer(found, output, _show_probed)


def _show_probed(found: Document) -> None:
    rows = [(key, str(found[key])) for key in ("vendor", "model", "serial", "firmware", "ports")]
    for section in ("timing", "light", "behaviour"):
        rows += [(f"{section}.{key}", str(value)) for key, value in found[section].items()]
    measured = set(found["probe"]["measured"])
    out.show_table(
        ("WHAT", "VALUE", "KNOWN"),
        [(what, value, "measured" if what in measured else "assumed") for what, value in rows],
    )


def _order(socket: Path, order: Document) -> Document:
    """Send one request to an emulator's control socket and return its answer."""
    hint = "start the emulator with --control SOCKET"
    try:
        with socketlib.socket(socketlib.AF_UNIX) as line:
            line.settimeout(_CONTROL_S)
            line.connect(str(socket))
            line.sendall(json.dumps(order).encode() + b"\n")
            answer: Document = json.loads(line.makefile("rb").readline())
    except TimeoutError:
        raise CliError(
            "timeout", f"no answer within {_CONTROL_S:g} s", object=str(socket)
        ) from None
    except (OSError, ValueError) as error:
        raise CliError("unavailable", str(error), object=str(socket), hint=hint) from None
    return answer


def _password() -> str | None:
    return os.environ.get("LIGHTLOOM_OCS_PASSWORD")


def _run(work: Coroutine[Any, Any, Document]) -> Document:
    import asyncio  # noqa: PLC0415 - start-up time

    from ocs_driver import OcsError  # noqa: PLC0415 - start-up time

    out.logs_to_stderr()

    async def limited() -> Document:
        async with asyncio.timeout(_LIMIT_S):
            return await work

    try:
        return asyncio.run(limited())
    except OcsError as error:
        raise _translated(error) from None
    except TimeoutError:
        raise CliError("timeout", f"the switch did not answer within {_LIMIT_S:g} s") from None


def _translated(error: OcsError) -> CliError:
    from ocs_driver import (  # noqa: PLC0415 - start-up time
        OcsConflict,
        OcsDenied,
        OcsLogin,
        OcsTimeout,
        OcsUnreachable,
    )

    kinds: tuple[tuple[type[OcsError], str, str], ...] = (
        (OcsUnreachable, "unavailable", "check host and port of the URL"),
        (OcsTimeout, "timeout", "the outcome is unknown: lightloom ocs show URL"),
        (
            OcsLogin,
            "forbidden",
            "put the user into the URL and the password into LIGHTLOOM_OCS_PASSWORD",
        ),
        (
            OcsConflict,
            "conflict",
            "see which circuits use these ports: lightloom ocs show URL; or use --mode",
        ),
        (OcsDenied, "failed", f"the switch says {error.code}"),
    )
    for kind, code, hint in kinds:
        if isinstance(error, kind):
            return CliError(code, error.hint, object=error.obj, hint=hint)
    return CliError("usage", error.hint, object=error.obj, hint="see: lightloom ocs --help")


def _print_applied(applied: Document, output: OutputFormat, url: str) -> None:
    print_answer(applied, output, _show_applied)
    if not applied["ok"]:
        bad = next(r for r in applied["results"] if r["outcome"] == "failed")
        raise CliError(
            "failed",
            f"{bad['action']} {bad['a']} - {bad['b']} failed: {bad['message'] or bad['code']}",
            object=f"{bad['a']}-{bad['b']}",
            hint=f"lightloom ocs show {url}",
        )


def _show_applied(applied: Document) -> None:
    _RESULTS(applied)
    _print_circuits(applied)


def _print_circuits(found: Document) -> None:
    out.line("")
    if found["circuits"]:
        _CIRCUITS(found)
    else:
        out.line("no circuits")


_RESULTS = table(
    {
        "ACTION": lambda r: r["action"],
        "A": lambda r: r["a"],
        "B": lambda r: r["b"],
        "OUTCOME": lambda r: r["outcome"],
        "MESSAGE": lambda r: r["message"] or NONE,
    },
    "results",
)
_CIRCUITS = table(
    {
        "A": lambda c: c["a"],
        "B": lambda c: c["b"],
        "DUPLEX": lambda c: "yes" if c["duplex"] else "no",
        "STATE": lambda c: c["state"],
        "NAME": lambda c: c["name"] or NONE,
        "OWNER": lambda c: c["owner"] or NONE,
    },
    "circuits",
)


def _dbm(power: float | None) -> str:
    return NONE if power is None else f"{power:.1f} dBm"

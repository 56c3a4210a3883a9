"""``lightloom pki``: the site's certificate authority, and a certificate for each daemon."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.options import OutputOption
from console.cli.errors import usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat

app = typer.Typer(
    name="pki",
    help="Certificates of controller, agents and aggregators, for TLS.",
    no_args_is_help=True,
)
DEFAULT_DIR = Path("/etc/lightloom/pki")


class CertificateSubject(StrEnum):
    """Daemons that have a certificate."""

    AGENT = "agent"
    AGGREGATOR = "aggregator"
    CONTROLLER = "controller"


DirOption = Annotated[Path, typer.Option("--dir", help="Folder of the authority.")]


@app.command()
def init(
    directory: DirOption = DEFAULT_DIR,
    site: Annotated[str, typer.Option(help="The site's name.")] = "site",
    days: Annotated[int, typer.Option(min=1, max=36500, help="Days until it expires.")] = 3650,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create the authority. Its key signs all daemons: keep it off the servers."""
    from pki import Authority  # noqa: PLC0415 - start-up time

    Authority.create(directory, site, now=datetime.now(UTC), days=days)
    made = f"authority of {site} in {directory}; ca-key.pem is its secret key"
    print_answer({"authority": str(directory)}, output, lambda _: out.line(made))


@app.command()
def issue(
    *,
    role: Annotated[CertificateSubject, typer.Argument(help="agent, aggregator or controller.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The agent's server, or the aggregator, as the site file names it;"
            " as0,as1 for one Open vSwitch that is both."
        ),
    ] = None,
    directory: DirOption = DEFAULT_DIR,
    target: Annotated[
        Path | None, typer.Option("--out", help="Default: DIR/NAME or DIR/controller.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until it expires.")] = 397,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write cert.pem, key.pem and ca.pem for one daemon, or renew them."""
    if (role is CertificateSubject.CONTROLLER) == (name is not None):
        raise usage(
            "an agent needs its server's name, an aggregator its own, a controller none",
            "lightloom pki issue agent SERVER | aggregator NAME | controller",
        )
    from pki import Authority  # noqa: PLC0415 - start-up time

    authority = Authority.load(directory)
    where = target or directory / (name or CertificateSubject.CONTROLLER.value)
    now = datetime.now(UTC)
    if name is None:
        issued = authority.issue_controller(where, now=now, days=days)
    elif role is CertificateSubject.AGENT:
        issued = authority.issue_agent(name, where, now=now, days=days)
    else:
        issued = authority.issue_aggregators(name.split(","), where, now=now, days=days)
    made = f"{issued.name} in {issued.directory}, valid until {issued.expires:%Y-%m-%d}"
    document = {
        "name": issued.name,
        "directory": str(issued.directory),
        "expires": issued.expires.isoformat(),
    }
    print_answer(document, output, lambda _: out.line(made))

"""``schema``, ``doctor`` and ``version``, which need no controller."""

from __future__ import annotations

import platform
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.options import OutputOption
from console.cli.doctor.finding import CheckedRole
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat


class SchemaOf(StrEnum):
    """Files that have a published schema."""

    SITE = "site"
    JOB = "job"


def schema(
    what: Annotated[SchemaOf, typer.Argument(help="Which file.")] = SchemaOf.SITE,
) -> None:
    """Print the JSON Schema of a site or job file. Editors and checkers use it."""
    from controller.schema.submit.file import job_schema  # noqa: PLC0415 - start-up time
    from sitefile import site_schema  # noqa: PLC0415 - start-up time

    out.document(job_schema() if what is SchemaOf.JOB else site_schema(), OutputFormat.JSON)


def doctor(
    role: Annotated[
        CheckedRole, typer.Option(help="What the machine is checked for.")
    ] = CheckedRole.RACK,
    site: Annotated[
        Path | None,
        typer.Option(help="Site file, for agent and controller.", metavar="FILE"),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Which server this is, as the site file names it.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check this machine for the emulated rack, or for an agent or a controller of a real one.

    Changes nothing. Exit code 1 when something that the role needs is missing.
    """
    if role is CheckedRole.RACK:
        if site is not None or server is not None:
            raise usage(
                "--site and --server need a role", "lightloom doctor --role agent --site FILE"
            )
        from console.cli.doctor.checks import examine  # noqa: PLC0415 - start-up time

        findings = examine()
    else:
        from console.cli.doctor.access import MachineAccess  # noqa: PLC0415 - start-up time
        from console.cli.doctor.duty import read_duty  # noqa: PLC0415 - start-up time
        from console.cli.doctor.rows import examine_role  # noqa: PLC0415 - start-up time

        machine = MachineAccess()
        findings = examine_role(machine, read_duty(machine, role, site, server))
    lacking = [f for f in findings if f.state == "missing"]
    rows = [(f.name, f.state, f.found, f.fix) for f in findings]
    print_answer(
        {"ok": not lacking, "role": role, "checks": [finding.document() for finding in findings]},
        output,
        lambda _: out.show_table(("CHECK", "STATE", "FOUND", "FIX"), rows),
    )
    if lacking:
        lacks = "the emulated rack" if role is CheckedRole.RACK else f"the {role}"
        raise CliError(
            "failed",
            f"{lacks} lacks {', '.join(f.name for f in lacking)}",
            object="machine",
            hint=lacking[0].fix,
        )


def version(output: OutputOption = OutputFormat.TABLE) -> None:
    """Print the version of this command."""
    from importlib import metadata  # noqa: PLC0415 - start-up time

    try:
        own = metadata.version("lightloom")
    except metadata.PackageNotFoundError:
        own = "unknown"
    document = {"version": own, "python": platform.python_version()}
    print_answer(document, output, lambda _: out.line(f"lightloom {own}"))

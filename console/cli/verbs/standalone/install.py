"""``lightloom install`` and ``uninstall``: units, accounts, folders and example files of a role."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.ask.options import OutputOption, YesOption
from console.cli.errors import CliError, usage
from console.cli.install.values import MachineRole
from console.cli.show import output as out
from console.cli.show.output import OutputFormat

if TYPE_CHECKING:
    from console.cli.install.values import Step
    from sitefile import CabledSite

RoleArgument = Annotated[MachineRole, typer.Argument(help="controller or agent.")]
RootOption = Annotated[
    Path, typer.Option("--root", help="Folder of another machine's file system.", metavar="DIR")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
]
_SERVER = re.compile(r"^[^#\n]*--server[= ]([\w.-]+)", re.MULTILINE)


def install(
    *,
    role: RoleArgument,
    site: Annotated[
        Path | None,
        typer.Option(help="Site file to copy; an example if absent.", metavar="FILE"),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="An agent's server, as the site file names it.")
    ] = None,
    root: RootOption = Path("/"),
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write the unit, account, folders and example files of a controller or an agent.

    It starts nothing. A second time it changes only what differs. It replaces the unit and the
    rules of Prometheus with those of this version, and never a file that belongs to the site.
    """
    from console.cli.install import machine, plan  # noqa: PLC0415 - start-up time
    from console.cli.install.parts import ACCOUNT, SITE_FILE, Given, parts  # noqa: PLC0415 - start-up time

    _check(root, dry_run=dry_run)
    given, content = (None, None) if site is None else _read_site(site)
    if role is MachineRole.AGENT:
        present = machine.place(root, SITE_FILE)
        known = _read_site(present)[0] if present.exists() else given
        server = _server(root, server, known)
    elif server is not None:
        raise usage("a controller has no --server", "lightloom install controller")
    bin_dir = machine.program_folder(root, Path(sysconfig.get_path("scripts")))
    if role is MachineRole.CONTROLLER:  # an agent is root
        machine.check_program(root, bin_dir, ACCOUNT)
    wanted = parts(role, Given(bin_dir, content, server or ""))
    steps = plan.install(wanted, machine.read_machine(root, wanted))
    if not dry_run:
        machine.perform(root, steps)
    _print_result(role, root, steps, output, dry_run=dry_run, then=_next(role, steps))


def uninstall(
    *,
    role: RoleArgument,
    purge: Annotated[
        bool,
        typer.Option(
            help="Also remove the site file, options, keys, passwords, the account, and all state:"
            " jobs, accounts of people, audit trail, logs."
        ),
    ] = False,
    root: RootOption = Path("/"),
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a controller or an agent and remove its unit; keep its files without --purge.

    Containers and circuits stay as they are: end the jobs first.
    """
    from console.cli.install import machine, plan  # noqa: PLC0415 - start-up time
    from console.cli.install.parts import UNITS, Given, parts  # noqa: PLC0415 - start-up time

    _check(root, dry_run=dry_run)
    other = MachineRole.AGENT if role is MachineRole.CONTROLLER else MachineRole.CONTROLLER
    has_other = machine.place(root, f"{UNITS}/{other.unit}").exists()
    others = parts(other, Given()) if has_other else []
    present = parts(role, Given())
    steps = plan.remove(present, machine.read_machine(root, present), others=others, purge=purge)
    if not dry_run:
        if purge and steps and not yes:
            out.ask(f"Remove the {role} with its configuration and all its state?")
        machine.perform(root, steps)
    _print_result(role, root, steps, output, dry_run=dry_run, then=())


def _check(root: Path, *, dry_run: bool) -> None:
    if not root.is_absolute() or not root.is_dir():
        raise CliError(
            "not_found", f"{root} is not an absolute path of a folder", object=str(root),
            hint="--root /srv/image, say; without it this machine is meant",
        )  # fmt: skip
    if os.geteuid() != 0 and not dry_run:
        raise CliError(
            "forbidden", "this needs root", object=str(root), hint="run it with sudo, or --dry-run"
        )


def _read_site(path: Path) -> tuple[CabledSite, bytes]:
    """Return a site and the bytes of its file. CliError when it is missing or has errors."""
    from sitefile import SiteFileError, load_site  # noqa: PLC0415 - start-up time

    try:
        content = path.read_bytes()
        return load_site(path), content
    except OSError as error:
        raise CliError(
            "not_found", f"{path}: {error.strerror}", object=str(path), hint="give a site file"
        ) from error
    except SiteFileError as error:
        raise CliError("invalid", str(error), object=str(path)) from error


def _server(root: Path, given: str | None, site: CabledSite | None) -> str:
    """Return the server's name, that of an agent's existing options if none is given. CliError."""
    from console.cli.install import machine  # noqa: PLC0415 - start-up time
    from console.cli.install.parts import AGENT_OPTIONS  # noqa: PLC0415 - start-up time

    options = machine.place(root, AGENT_OPTIONS)
    kept = _SERVER.search(options.read_text(encoding="utf-8")) if options.exists() else None
    name = given or (kept[1] if kept else None)
    if name is None:
        raise usage(
            "an agent needs the name of its server",
            "lightloom install agent --server srv0 --site FILE",
        )
    if kept and name != kept[1]:
        raise CliError(
            "conflict",
            f"{AGENT_OPTIONS} names {kept[1]}, not {name}",
            object=AGENT_OPTIONS,
            hint="change it there: an existing file of options is never replaced",
        )
    known = [] if site is None else [s.name for s in site.servers]
    if site is not None and name not in known:
        raise CliError(
            "not_found",
            f"site {site.name} has no server {name}",
            object=f"server/{name}",
            hint=f"it has {', '.join(known)}",
        )
    return name


def _next(role: MachineRole, steps: Sequence[Step]) -> tuple[str, ...]:
    from console.cli.install.values import File, StepAction  # noqa: PLC0415 - start-up time

    fresh = [s.name for s in steps if s.action is StepAction.CREATED and isinstance(s.part, File)]
    unit = role.unit.removesuffix(".service")
    if any(name.endswith(role.unit) for name in fresh):
        edit = [f"edit {name}" for name in fresh if name.startswith("/etc/lightloom/")]
        keys = "copy the certificates of `lightloom pki issue`, then run this again"
        return (*edit, keys, f"systemctl enable --now {unit}")
    changed = any(s.action.changes for s in steps)
    return (f"systemctl restart {unit}, to run this version",) if changed else ()


def _print_result(
    role: MachineRole,
    root: Path,
    steps: Sequence[Step],
    output: OutputFormat,
    *,
    dry_run: bool,
    then: Sequence[str],
) -> None:
    changed = sum(step.action.changes for step in steps)
    if output.structured:
        out.document(
            {
                "role": role.value,
                "root": str(root),
                "dryRun": dry_run,
                "changed": changed,
                "steps": [step.document() for step in steps],
                "next": list(then),
            },
            output,
        )
        return
    rows = [(step.action, step.name, step.note) for step in steps]
    out.show_table(("ACTION", "WHAT", "NOTE"), rows)
    would = "would change" if dry_run else "changed"
    out.message(f"{role}: {changed} {would}, {len(steps) - changed} as they were")
    for hint in then:
        out.message(f"next: {hint}")

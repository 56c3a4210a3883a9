"""Finds what a machine is in its site: from the site file, and from its daemon's options."""

from __future__ import annotations

from pathlib import Path

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.finding import CheckedRole, Duty, parse_options
from console.cli.install.parts import CONFIGURATION, SITE_FILE
from sitefile import SiteFileError, load_site


def read_duty(
    machine: MachineAccess, role: CheckedRole, site_file: Path | None, server: str | None
) -> Duty:
    """Return the duty of this machine; without ``site_file`` the installed one counts."""
    name = str(role)
    options = parse_options(
        machine.text(f"{CONFIGURATION}/{name}.env"), f"LIGHTLOOM_{name.upper()}_OPTIONS"
    )
    file = site_file or machine.at(SITE_FILE)
    site, problem = None, ""
    try:
        site = load_site(file)
    except SiteFileError as error:
        is_given = site_file is not None or file.exists()
        count = len(error.problems)
        said = "; ".join(str(p) for p in error.problems[:3])
        problem = f"{file}: {count} problems: {said}" if is_given else "no site file is given"
    chosen = server or options.get("--server", "")
    if not chosen and site is not None and len(site.servers) == 1:
        chosen = site.servers[0].name
    return Duty(role, site, problem, chosen, options)

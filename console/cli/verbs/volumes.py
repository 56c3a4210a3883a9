"""``volume remove``: removes what jobs left in volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.asking import Columns, print_answer, table
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError, usage
from console.cli.show.output import OutputFormat
from console.cli.show.text import size

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]

volume = typer.Typer(no_args_is_help=True, help="What jobs left in volumes; see get volumes.")


@volume.callback()
def _group() -> None:
    """Keep ``remove`` a command of its own."""


@volume.command("remove")
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The volume's name.")],
    *,
    project: Annotated[
        str | None, typer.Option(help="Whose directory, or whose job's directory, to remove.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job whose directory to remove.")] = None,
    server: Annotated[str | None, typer.Option(help="Only there; all servers if absent.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove what a project or a job left in a volume. Refused while a job uses it.

    Exit code 1 when a server did not confirm; then `lightloom get volumes` shows what is left.
    """
    if project is None and job is None:
        raise usage("it is not said whose data", "give --project P, --job J, or both")
    bare = name.removeprefix("volume/")
    with connect(ctx) as client:
        owner = _owner(client, bare, project, None if job is None else job.removeprefix("job/"))
        view = client.delete(
            f"/volumes/{client.part(bare)}/data/{client.part(owner)}",
            extra_s=60.0,
            server=None if server is None else server.removeprefix("node/"),
            dry_run=dry_run,
        )
    word = "would be removed" if dry_run else "removed"
    columns: Columns = {
        "SERVER": lambda d: d["server"],
        "BYTES": lambda d: size(d["bytes"]),
        "FILES": lambda d: d["files"],
        "RESULT": lambda d: d["problem"] or word,
    }
    print_answer(view, output, table(columns, "directories"))
    failed = [d for d in view["directories"] if d["problem"]]
    if failed:
        raise CliError(
            "failed",
            f"not removed from {', '.join(d['server'] for d in failed)}: {failed[0]['problem']}",
            object=f"volume/{bare}",
            hint="see `lightloom get volumes`, then try again",
        )


def _owner(client: ControllerClient, volume: str, project: str | None, job: str | None) -> str:
    """Return whose directory it is; look up the project of a job. CliError."""
    if job is None:
        return str(project)
    if project is not None:
        return f"{project}.{job}"
    found = {
        data["owner"]
        for item in client.whole("/volumes")["items"]
        for data in item["data"]
        if item["name"] == volume and data["job"] == job
    }
    if len(found) == 1:
        return str(found.pop())
    if found:
        raise usage(
            f"{', '.join(sorted(found))} left data in volume {volume}", "name the --project as well"
        )
    raise CliError(
        "not_found",
        f"job {job} left nothing in volume {volume}",
        object=f"volume/{volume}",
        hint="see `lightloom get volumes`",
    )

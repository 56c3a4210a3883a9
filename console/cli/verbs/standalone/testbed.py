"""``testbed``: the emulated rack on this machine."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.files import reading
from console.cli.ask.options import NameOutput, OutputOption, WideOutput
from console.cli.errors import usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import age, rate

if TYPE_CHECKING:
    from testbed.rack.slurm.config import UnderSlurm

Document = dict[str, Any]
_RUN_DIR = Path("/run/lightloom/rack")

app = typer.Typer(
    help="The emulated rack with controller and agents on this machine.", no_args_is_help=True
)

NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        envvar="LIGHTLOOM_LANE",
        help="The rack of this name, in a lane of its own beside others.",
        show_default=False,
    ),
]
RunDirOption = Annotated[
    Path, typer.Option("--run-dir", help="Folder of the rack's records, sockets and logs.")
]


def _default_site() -> Path:
    import testbed  # noqa: PLC0415 - start-up time

    return Path(testbed.__file__).parent / "sites" / "paper.yaml"


@app.command()
def up(
    *,
    site: Annotated[
        Path | None, typer.Option(help="Site file; the paper's rack if absent.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="slurm: endpoints belong to a Slurm of the rack's own.")
    ] = "",
    engine_endpoints: Annotated[
        str, typer.Option(help="Comma-separated: which ones, gpu4,gpu5. [default: all]")
    ] = "",
    isolation: Annotated[
        str, typer.Option(help="Of that engine's jobs: open or job; docs/slurm.md.")
    ] = "open",
    name: NameOption = "",
    run_dir: RunDirOption = _RUN_DIR,
    output: WideOutput = OutputFormat.TABLE,
) -> None:
    """Bring the rack up: switches, aggregators, agents, controller. Needs root."""
    if engine not in ("", "slurm") or isolation not in ("open", "job"):
        raise usage(
            f"--engine {engine} --isolation {isolation} is not known",
            "lightloom testbed up --engine slurm --isolation open",
        )
    if engine_endpoints and not engine:
        raise usage("--engine-endpoints needs --engine", "lightloom testbed up --engine slurm")
    out.logs_to_stderr()
    from testbed import rack  # noqa: PLC0415 - start-up time

    file = site or _default_site()
    if name:
        words = ["-o", output.value, "--isolation", isolation]
        words += ["--engine", engine] if engine else []
        words += ["--engine-endpoints", engine_endpoints] if engine_endpoints else []
        _up_in_lane(name, file, words, slurm=bool(engine))
    started = time.monotonic()
    with reading(file):
        status = rack.up(
            file,
            run_dir,
            progress=out.message,
            slurm=_under_slurm(engine, isolation, engine_endpoints),
        )
    then = "lightloom testbed slurm -- sinfo" if engine else "lightloom get endpoints"
    out.message(f"up after {time.monotonic() - started:.1f} s; try: {then}")
    _print(status.to_dict(), output, run_dir)


def _up_in_lane(name: str, file: Path, words: list[str], *, slurm: bool) -> NoReturn:
    from testbed.lanes import racks  # noqa: PLC0415 - start-up time

    with reading(file):
        code = racks.up(name, file, words, slurm=slurm, progress=out.message)
    for rack in racks.everyone() if code == 0 else ():
        if rack.name == name:
            out.message(f"here it is {rack.url}, its token is in {rack.token_file}")
            out.message(f"for all commands: export LIGHTLOOM_LANE={name}")
    raise typer.Exit(code)


def _in_lane(name: str, run_dir: Path, *words: str) -> None:
    """Run this command in lane ``name`` instead, if it is given, and end with its exit code."""
    if not name:
        return
    if run_dir != _RUN_DIR:
        raise usage("a rack with a name has no --run-dir", "give one of them")
    from testbed.lanes import racks  # noqa: PLC0415 - start-up time

    raise typer.Exit(racks.run(name, ["testbed", *words]))


def _under_slurm(engine: str, isolation: str, endpoints: str) -> UnderSlurm | None:
    from testbed.rack.slurm.config import UnderSlurm  # noqa: PLC0415 - start-up time

    if not engine:
        return None
    names = tuple(name.strip() for name in endpoints.split(",") if name.strip())
    return UnderSlurm("job" if isolation == "job" else "open", names)


@app.command()
def down(
    name: NameOption = "",
    run_dir: RunDirOption = _RUN_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Take the rack down, and all its processes, namespaces, links and containers."""
    out.logs_to_stderr()
    if name:
        from testbed import lanes  # noqa: PLC0415 - start-up time

        lanes.end(name)
        down_now = {"name": name, "state": "down"}
        print_answer(down_now, output, lambda _: out.line(f"rack {name} is down"))
        return
    from testbed import rack  # noqa: PLC0415 - start-up time

    rack.down(run_dir, progress=out.message)
    _print(rack.status(run_dir).to_dict(), output, run_dir)


@app.command("slurm")
def slurm_command(
    words: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGUMENT]...", help="squeue, sbatch, srun …")
    ],
    name: NameOption = "",
    run_dir: RunDirOption = _RUN_DIR,
) -> None:
    """Run one of Slurm's programs on the head node of a rack under Slurm. Needs root.

    Its exit code is this command's: lightloom testbed slurm -- srun -N2 --gres=gpu:1 hostname
    """
    _in_lane(name, run_dir, "slurm", "--", *words)
    from testbed.rack.slurm import engines  # noqa: PLC0415 - start-up time

    raise typer.Exit(engines.run_here(run_dir, words))


ObjectArgument = Annotated[
    str,
    typer.Argument(metavar="OBJECT", help="An endpoint, server, aggregator or optical switch."),
]


@app.command()
def lose(
    lost: ObjectArgument,
    name: NameOption = "",
    run_dir: RunDirOption = _RUN_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make gpu3, srv2, as1 or ocs0 fail at once, as its power or its bus would. Needs root."""
    out.logs_to_stderr()
    _in_lane(name, run_dir, "lose", lost, "-o", output.value)
    from testbed import rack  # noqa: PLC0415 - start-up time

    print_answer(rack.lose(lost, run_dir, progress=out.message).to_dict(), output, _show_change)


@app.command()
def repair(
    lost: ObjectArgument,
    name: NameOption = "",
    run_dir: RunDirOption = _RUN_DIR,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring a lost object back, empty as a device is when its power returns. Needs root."""
    out.logs_to_stderr()
    _in_lane(name, run_dir, "repair", lost, "-o", output.value)
    from testbed import rack  # noqa: PLC0415 - start-up time

    print_answer(rack.repair(lost, run_dir, progress=out.message).to_dict(), output, _show_change)


def _show_change(change: Document) -> None:
    text = f"{change['kind']} {change['object']} is {change['state']}"
    if not change["changed"]:
        text += " already" if change["state"] == "lost" else ": it was not lost"
    elif change["killed"]:
        text += f"; {len(change['killed'])} processes were killed"
    out.line(text)


@app.command("status")
def show(
    name: NameOption = "", run_dir: RunDirOption = _RUN_DIR, output: WideOutput = OutputFormat.TABLE
) -> None:
    """Show which processes run and which parts are emulated."""
    out.logs_to_stderr()
    _in_lane(name, run_dir, "status", "-o", output.value)
    from testbed import rack  # noqa: PLC0415 - start-up time

    _print(rack.status(run_dir).to_dict(), output, run_dir)


@app.command("list")
def list_racks(output: NameOutput = OutputFormat.TABLE) -> None:
    """List the racks that have a name; as root also remove what killed ones left."""
    out.logs_to_stderr()
    from testbed.lanes import racks  # noqa: PLC0415 - start-up time

    found = racks.everyone()
    if output is OutputFormat.NAME:
        for rack in found:
            out.line(rack.name)
    elif output.structured:
        out.document({"items": [dataclasses.asdict(rack) for rack in found]}, output)
    else:
        now = time.time()
        rows = [(r.name, r.state, r.site, r.url, age(now - r.started_at)) for r in found]
        out.show_table(("NAME", "STATE", "SITE", "CONTROLLER", "AGE"), rows)


def _print(status: Document, output: OutputFormat, run_dir: Path) -> None:
    if output.structured:
        out.document(status, output)
        return
    rows = [("state", status["state"])]
    if status["site"]:
        from testbed.token import token_file  # noqa: PLC0415 - start-up time

        rows += [
            ("site", f"{status['site']} ({status['site_file']})"),
            ("controller", status["url"]),
            ("console", f"{status['url']} in a browser; its token is in {token_file(run_dir)}"),
            ("image", status["image"] or "none yet"),
            ("links", _rates(status)),
            ("age", age(time.time() - status["started_at"])),
        ]
    if status["lost"]:
        rows.append(("lost", ", ".join(status["lost"])))
    rows += [("left behind", entry) for entry in status["remains"]]
    out.show_table(("", ""), rows, head=False)
    if status["remains"]:
        out.message("remove it: lightloom testbed down")
    if status["parts"]:
        out.line("")
        out.show_table(
            ("PROCESS", "PID", "RUNS", "LOG"),
            [
                (part["name"], part["pid"], "yes" if part["alive"] else "NO", part["log"])
                for part in status["parts"]
            ],
        )
    if status["emulated"]:
        out.line("")
        out.show_table(
            ("EMULATED", "STANDS FOR", "PLAYED BY"),
            [(part["name"], part["stands_for"], part["played_by"]) for part in status["emulated"]],
        )


def _rates(status: Document) -> str:
    access, between = status["access_bps"], status["inter_aggregator_bps"]
    return f"access {rate(access)}, between aggregators {rate(between)}"

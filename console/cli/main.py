"""The ``lightloom`` command: its verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from console.cli.ask.settings import Flags
from console.cli.errors import EXIT_CODES, CliError
from console.cli.show import streams
from console.cli.show.output import asks_for_json, complain
from console.cli.verbs import (
    engine,
    execs,
    images,
    jobs,
    objects,
    people,
    report,
    top,
    volumes,
)
from console.cli.verbs import usage as usages
from console.cli.verbs.insight import advice, comms, compare, measure
from console.cli.verbs.light import aggregator, allocation, plans, repairs, trace
from console.cli.verbs.standalone import (
    daemons,
    demo,
    inspect,
    install,
    ocs,
    pki,
    simulate,
    testbed,
)
from console.cli.verbs.survival import checkpoints, drains, recoveries, store

app = typer.Typer(
    name="lightloom",
    help="Control plane for GPU clusters on optical circuit switches.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb in (
    jobs.submit,
    objects.get,
    objects.describe,
    jobs.logs,
    jobs.cancel,
    jobs.pause,
    jobs.resume,
    jobs.wait,
    plans.plan,
    plans.apply,
    plans.defrag,
    compare.compare,
    advice.whatif,
    advice.advise,
    repairs.attach,
    repairs.detach,
    repairs.abort,
    recoveries.recoveries,
    drains.drain,
    drains.undrain,
    allocation.move,
    allocation.export,
    allocation.diff,
    trace.trace,
    repairs.repair,
    top.top,
    comms.comms,
    people.whoami,
    report.report,
    usages.usage,
    simulate.simulate,
    demo.demo,
    inspect.schema,
    inspect.doctor,
    inspect.version,
    install.install,
    install.uninstall,
):
    app.command()(_verb)


@app.command("help")
def _help(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="measure links")
    ] = None,
) -> None:
    """Show what lightloom, or one of its commands, does."""
    app([*(words or ()), "--help"], prog_name="lightloom", standalone_mode=False)


app.command(context_settings=daemons.FORWARD)(daemons.controller)
app.command(context_settings=daemons.FORWARD)(daemons.agent)
app.add_typer(repairs.quarantine, name="quarantine")
app.add_typer(volumes.volume, name="volume")
app.add_typer(measure.measure, name="measure")
app.add_typer(checkpoints.checkpoints, name="checkpoints")
app.add_typer(engine.engine, name="engine")
app.add_typer(store.store, name="store")
app.command("exec")(execs.execute)
app.command("import")(allocation.import_file)
app.add_typer(allocation.events, name="events")
app.add_typer(images.image, name="image")
app.add_typer(people.token, name="token")
app.add_typer(people.project, name="project")
app.add_typer(people.audit, name="audit")
app.add_typer(testbed.app, name="testbed")
app.add_typer(pki.app, name="pki")
app.add_typer(ocs.app, name="ocs")
app.add_typer(aggregator.aggregator, name="aggregator")


def _version(given: bool) -> None:
    if given:
        inspect.version()
        raise typer.Exit


@app.callback()
def _globals(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help="The controller; one on this machine if absent. [env: LIGHTLOOM_URL]",
            metavar="URL",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Your token. [env: LIGHTLOOM_TOKEN]", metavar="TOKEN")
    ] = None,
    request_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--request-timeout",
            help="Seconds to wait for each answer. [env: LIGHTLOOM_TIMEOUT] [default: 30]",
        ),
    ] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and end.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"
    ctx.obj = Flags(url, token, request_timeout_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no error ends in a stack trace."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    streams.prepare()
    code = _run(given)
    lost = streams.unwritten()
    return code if lost is None or code else _end(_output_lost(lost), given)


def _run(given: Sequence[str]) -> int:
    try:
        code = app(list(given), prog_name="lightloom", standalone_mode=False)
    except CliError as error:
        return _end(error, given)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
            streams.message(error.format_message() + "\n")
            return error.exit_code
        return _end(_from_parser(error), given)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_CODES["interrupted"]
    except Exception as error:
        lost = streams.unwritten() if isinstance(error, OSError) else None
        if lost is None and os.environ.get("LIGHTLOOM_DEBUG"):
            raise
        return _end(_from_package(error) if lost is None else _output_lost(lost), given)
    return code if isinstance(code, int) else 0


def _end(error: CliError, given: Sequence[str]) -> int:
    if error.message:
        complain(error, as_json=asks_for_json(given))
    return error.exit_code


def _output_lost(error: OSError) -> CliError:
    """Return the error for output that the caller's stdout did not take; none is said of a pipe."""
    if isinstance(error, BrokenPipeError):
        return CliError("failed", "")
    return CliError(
        "failed",
        f"the output cannot be written: {error.strerror or error}",
        hint="look where stdout goes; what the command did is done",
    )


def _from_parser(error: typer.TyperException) -> CliError:
    command = getattr(getattr(error, "ctx", None), "command_path", "lightloom")
    message = error.format_message()
    wrong = getattr(error.__cause__, "errors", None)
    if callable(wrong):  # of a validator, whose own words are for programmers
        from sitefile.wording import plain_words  # noqa: PLC0415 - start-up time

        message = message.replace(str(getattr(error, "message", "")), plain_words(wrong()[0]))
    return CliError("usage", message, hint=f"see: {command} --help")


def _from_package(error: Exception) -> CliError:
    """Translate an error of a package that the verb called; most have a code and a hint."""
    code, message = getattr(error, "code", None), getattr(error, "message", None)
    if isinstance(code, str) and code in EXIT_CODES and isinstance(message, str):
        about, hint = getattr(error, "object", ""), getattr(error, "hint", "")
        return CliError(code, message, object=str(about), hint=str(hint))
    if isinstance(error, ModuleNotFoundError):
        hint = "install what the emulated rack needs: pip install 'lightloom[testbed]'"
        return CliError("unavailable", f"{error.name} is not installed", hint=hint)
    return CliError(
        "failed",
        f"{type(error).__name__}: {error}",
        hint="LIGHTLOOM_DEBUG=1 shows where; please report it",
    )

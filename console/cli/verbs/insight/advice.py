"""``whatif`` and ``advise``: what a job's step would be elsewhere, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.asking import answer
from console.cli.ask.complete import names
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.advice import gain, spans, step, step_change
from console.cli.show.checkpoints import interval_text
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, plain
from console.cli.verbs.jobs import ENDED

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]


def homes_of(text: str) -> dict[str, str]:
    """Read ``gpu3=as0,gpu4=as0``. CliError with exit code 2."""
    found: dict[str, str] = {}
    for part in text.split(","):
        endpoint, equals, home = part.strip().partition("=")
        if not endpoint or not equals or not home:
            raise usage(f"--homes: {part!r} is not ENDPOINT=AGGREGATOR", "for example gpu3=as0")
        if endpoint in found:
            raise usage(f"--homes names {endpoint} twice")
        found[endpoint] = home
    return found


def whatif(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="A running job.", autocompletion=names("jobs"))],
    homes: Annotated[
        str,
        typer.Option(
            metavar="ENDPOINT=AGGREGATOR,...",
            help="Homes to suppose; the job's other endpoints stay where they are.",
        ),
    ],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Predict a running job's step with other homes. Nothing moves.

    The prediction is kept, and compared with what is measured once these homes come true:
    lightloom get predictions.
    """
    wanted = homes_of(homes)
    name = job.removeprefix("job/")
    answer(
        ctx,
        output,
        lambda client: client.post(f"/jobs/{client.part(name)}/whatif", {"homes": wanted}),
        _show,
    )


def _show(view: Document) -> None:
    out.show_table(
        ("", "NOW", "THEN"),
        [
            ["homes", spans(view["homes_before"]), spans(view["homes_after"])],
            ["span", view["span_before"], view["span_after"]],
            ["ring rate", _share(view["ring_rate_before"]), _share(view["ring_rate_after"])],
            ["step", step(view["step_now_s"]), step(view["step_then_s"])],
            ["change", NONE, step_change(view["change"])],
        ],
    )
    out.line("")
    out.line(f"prediction {view['prediction']}, from {'; '.join(view['basis'])}")
    for reason in view["unidentified"]:
        out.line(f"open: {plain(reason)}")
    if not view["possible"]:
        out.line("ports do not suffice now: other jobs hold them")


def advise(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(help="One job; all that run if absent.", autocompletion=names("jobs")),
    ] = None,
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say what limits a job (input, compute, network, placement, a slow rank) and what helps.

    Findings come in the order of what they gain, as a share of the step's time.
    """
    name = job.removeprefix("job/") if job else None
    with connect(ctx) as client:
        view = client.get("/advice", job=name)
        intervals = _intervals(client, name)
    if output.structured:
        out.document({**view, "checkpoints": intervals}, output)
        return
    if not view["findings"]:
        out.message("nothing is known that limits a running job" if name is None else "no finding")
    for number, found in enumerate(view["findings"], 1):
        _finding(number, found, with_job=name is None)
    for text in view["unknown"]:
        out.line(f"not known: {plain(text)}")
    for found in intervals:
        out.line(f"job {found['job']}: {interval_text(found)}")


def _intervals(client: ControllerClient, job: str | None) -> list[Document]:
    """Return how often jobs with checkpoints should write them."""
    path = "/jobs" if job is None else f"/jobs/{client.part(job)}"
    known = client.whole(path)["items"] if job is None else [client.get(path)]
    found = []
    for item in known:
        if item["checkpoint"] is None or item["state"] in ENDED:
            continue
        try:
            found.append(client.get(f"/jobs/{client.part(item['name'])}/checkpoints/advice"))
        except CliError as error:
            if error.code not in ("conflict", "not_found", "unavailable"):
                raise
            out.message(f"job {item['name']}: {error.message}")
    return found


def _finding(number: int, found: Mapping[str, Any], *, with_job: bool) -> None:
    whose = f"{found['job']}: " if with_job else ""
    saved = gain(found["gain"])
    out.line(f"{number}. {whose}{found['limit']}: {found['text']}{f' ({saved})' if saved else ''}")
    for text in found["evidence"]:
        out.line(f"   - {text}")
    if found["remedy"]:
        out.line(f"   → {found['remedy']}{': ' if found['command'] else ''}{found['command']}")


def _share(rate: float | None) -> str:
    return NONE if rate is None else f"{rate:.2f}"

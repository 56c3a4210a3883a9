"""``whoami``, ``token``, ``project`` and ``audit``: permissions and the audit trail."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.asking import Columns, answer, print_answer, table
from console.cli.ask.options import OutputOption
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, age, names

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_SPAN = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([smhd])$")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

token = typer.Typer(no_args_is_help=True, help="Tokens and their permissions. For admins.")
project = typer.Typer(no_args_is_help=True, help="Projects, which own jobs.")
audit = typer.Typer(no_args_is_help=True, help="The audit trail: who did what. For admins.")


def whoami(ctx: typer.Context, *, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the identity and the permissions of your token."""
    answer(ctx, output, lambda client: client.get("/whoami"), _show_whoami)


def _show_whoami(view: Document) -> None:
    rows = [
        ("name", view["name"]),
        ("role", names(view["roles"])),
        ("projects", names(view["projects"])),
        ("may", " ".join(view["may"])),
        ("token", view["token"] or "none: the controller requires none"),
        ("expires", _left(view["expires_at"])),
    ]
    out.show_table(("", ""), rows, head=False)


@token.command("create")
def create_token(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Its owner, a person or a program: alice.")],
    *,
    role: Annotated[str, typer.Option(help="admin, operator, user or viewer.")] = "user",
    projects: Annotated[
        list[str] | None, typer.Option("--project", help="A project; may be repeated; * is all.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Lifetime: 12h, 30d; until revoked if absent.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Write the token to this file (mode 0600) and do not print it."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a token. It is shown once: the controller stores only its hash."""
    body: Document = {"name": name, "role": role, "projects": projects or []}
    if expires is not None:
        body["expires_s"] = _seconds(expires)
    if file is not None and file.exists():
        raise usage(f"{file} exists", "name a new file")

    def make(client: ControllerClient) -> Document:
        view = client.post("/tokens", body)
        if file is not None:
            _write_secret(file, view.pop("token"))
            out.message(f"the token is in {file}")
        return view

    def show(view: Document) -> None:
        if "token" in view:
            out.line(view["token"])
            out.message(f"token {view['id']} of {name}: save it, it is not shown again")

    answer(ctx, output, make, show)


@token.command("list")
def list_tokens(ctx: typer.Context, *, output: OutputOption = OutputFormat.TABLE) -> None:
    """List all tokens, without their secrets."""
    columns: Columns = {
        "ID": lambda t: t["id"],
        "NAME": lambda t: t["name"],
        "ROLE": lambda t: t["role"],
        "PROJECTS": lambda t: names(t["projects"]),
        "STATE": lambda t: t["state"],
        "AGE": lambda t: age(time.time() - t["created_at"]),
        "EXPIRES": lambda t: _left(t["expires_at"]),
        "USED": lambda t: _ago(t["last_used_at"]),
    }
    answer(ctx, output, lambda client: client.whole("/tokens"), table(columns))


@token.command("revoke")
def revoke_token(
    ctx: typer.Context,
    ident: Annotated[str, typer.Argument(metavar="ID", help="As in `token list`.")],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Revoke a token, immediately and permanently."""
    answer(
        ctx,
        output,
        lambda client: client.delete(f"/tokens/{client.part(ident)}"),
        lambda view: out.line(f"token/{ident} of {view['name']} is {view['state']}"),
    )


@project.command("create")
def put_project(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Its name; that of an existing one changes its weight and quota.")
    ],
    *,
    weight: Annotated[
        float, typer.Option(min=0.001, help="Share relative to other projects.")
    ] = 1.0,
    quota: Annotated[int | None, typer.Option(min=0, help="Most endpoints at once.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a project, or change its weight and quota."""
    body = {"name": name, "weight": weight, "quota": quota}
    answer(
        ctx,
        output,
        lambda client: client.put(f"/projects/{client.part(name)}", body),
        lambda _: out.line(f"project/{name}"),
    )


@project.command("list")
def list_projects(ctx: typer.Context, *, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the projects you belong to."""
    columns: Columns = {
        "NAME": lambda p: p["name"],
        "WEIGHT": lambda p: p["weight"],
        "QUOTA": lambda p: NONE if p["quota"] is None else p["quota"],
        "JOBS": lambda p: p["jobs"],
        "ENDPOINTS": lambda p: p["endpoints"],
    }
    answer(ctx, output, lambda client: client.whole("/projects"), table(columns))


@audit.command("show")
def show_audit(
    ctx: typer.Context,
    *,
    since: Annotated[
        int | None, typer.Option(min=0, help="Records after this one; the newest if absent.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most records to show.")] = 200,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show who requested what, and the result."""
    columns: Columns = {
        "SEQ": lambda r: r["seq"],
        "TIME": lambda r: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(r["time"])),
        "WHO": lambda r: r["actor"],
        "ROLE": lambda r: r["role"],
        "FROM": lambda r: r["remote"] or NONE,
        "DID": lambda r: r["action"],
        "OBJECT": lambda r: r["object"] or NONE,
        "STATUS": lambda r: r["outcome"],
        "COUNT": lambda r: r["count"],
        "EPOCH": _epochs,
        "DETAIL": lambda r: r["detail"] or NONE,
    }
    answer(
        ctx, output, lambda client: client.get("/audit", since=since, limit=limit), table(columns)
    )


@audit.command("verify")
def verify_audit(
    ctx: typer.Context,
    *,
    expect: Annotated[
        str, typer.Option(help="A head printed by an earlier verify: SEQ:HASH.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--file", help="Check this file, without a controller.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check that no record was changed, removed or cut off. Exit code 3 if one was."""
    if file is None:
        view = answer(
            ctx,
            output,
            lambda client: client.get("/audit/verification", expect=expect or None),
            _show_verdict,
        )
    else:
        view = _verified(file, expect)
        print_answer(view, output, _show_verdict)
    if not view["ok"]:
        raise CliError(
            "unmet",
            f"the audit trail is not intact: {view['problem']}",
            object="audit",
            hint="keep the files as evidence",
        )


def _show_verdict(view: Document) -> None:
    if view["ok"]:
        out.line(f"{view['records']} records, intact; head {view['head']}")


def _verified(file: Path, expect: str) -> Document:
    from controller.people.audit_files import verify  # noqa: PLC0415 - start-up time

    if not file.is_file():
        raise usage(f"{file} cannot be read", "it is audit.jsonl in the state directory")
    verdict = verify(file, expect)
    return {
        "ok": verdict.ok,
        "records": verdict.records,
        "head": verdict.head,
        "problem": verdict.problem,
    }


def _epochs(record: Document) -> str:
    before, after = record["epoch_before"], record["epoch_after"]
    return str(after) if before == after else f"{before}>{after}"


def _seconds(text: str) -> float:
    found = _SPAN.match(text)
    if found is None:
        raise usage(f"{text!r} is not a lifetime", "for example 12h or 30d")
    return float(found.group(1)) * _UNITS_S[found.group(2)]


def _left(moment: float | None) -> str:
    if moment is None:
        return "never"
    left = moment - time.time()
    return f"in {age(left)}" if left > 0 else "past"


def _ago(moment: float | None) -> str:
    return NONE if moment is None else f"{age(time.time() - moment)} ago"


def _write_secret(file: Path, secret: str) -> None:
    import os  # noqa: PLC0415 - start-up time

    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(file, flags, 0o600), "w", encoding="ascii") as target:
            target.write(secret + "\n")
    except OSError as error:
        raise CliError(
            "failed",
            f"{file} cannot be written: {error.strerror}",
            object=str(file),
            hint="the token exists: revoke it, then try another file",
        ) from None

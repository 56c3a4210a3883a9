"""Shell completion: asks the controller for names; offers none when it does not answer."""

from __future__ import annotations

from collections.abc import Callable

import typer

_LONGEST_S = 1.5
_MOST = 200


def names(*kinds: str) -> Callable[[str], list[str]]:
    """Return a completer for the names of one or more kinds of object."""

    def complete(incomplete: str) -> list[str]:
        # On any error offer nothing: a shell that hangs at TAB is worse.
        try:
            found = [name for kind in kinds for name in _names(kind)]
        except Exception:
            return []
        return [name for name in found if name.startswith(incomplete)][:_MOST]

    return complete


def of_kind(*, with_transactions: bool = False) -> Callable[[str], list[str]]:
    """Return a completer for the kinds of object."""

    def complete(incomplete: str) -> list[str]:
        from console.cli.show.kinds import KINDS  # noqa: PLC0415 - start-up time

        known = [kind.plural for kind in KINDS]
        known += ["transaction"] if with_transactions else []
        return [name for name in known if name.startswith(incomplete)]

    return complete


def of_context(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of the kind given earlier on the command line."""
    kind = str(ctx.params.get("kind") or "")
    return names(kind if kind != "transaction" else "transactions")(incomplete)


def _names(kind: str) -> list[str]:
    from console.cli.ask.client import ControllerClient  # noqa: PLC0415 - start-up time
    from console.cli.ask.settings import Flags, resolve  # noqa: PLC0415
    from console.cli.show.kinds import find  # noqa: PLC0415

    with ControllerClient(resolve(Flags(timeout_s=_LONGEST_S))) as client:
        if kind == "transactions":
            return [str(item["id"]) for item in client.whole("/transactions")["items"]]
        wanted = find(kind)
        return [str(wanted.name(item)) for item in client.whole(f"/{wanted.plural}")["items"]]

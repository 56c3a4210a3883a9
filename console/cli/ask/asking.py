"""The shape of a verb that asks the controller one thing and prints the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from console.cli.ask.options import connect
from console.cli.show import output as out
from console.cli.show.output import OutputFormat

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
Columns = Mapping[str, Callable[[Document], object]]
"""Per column head of a table, the cell of one item."""


def answer(
    ctx: typer.Context,
    output: OutputFormat,
    ask: Callable[[ControllerClient], Document],
    show: Callable[[Document], None],
) -> Document:
    """Ask, print the answer as a document or as ``show`` does, and return it."""
    with connect(ctx) as client:
        found = ask(client)
    print_answer(found, output, show)
    return found


def print_answer(found: Document, output: OutputFormat, show: Callable[[Document], None]) -> None:
    """Print the answer as a document or as ``show`` does."""
    if output.structured:
        out.document(found, output)
    else:
        show(found)


def table(columns: Columns, items: str = "items") -> Callable[[Document], None]:
    """Return a function that prints a page's list ``items`` as a table."""
    return lambda page: out.show_table(
        tuple(columns), [tuple(of(item) for of in columns.values()) for item in page[items]]
    )

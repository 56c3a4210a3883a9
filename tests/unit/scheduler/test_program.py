"""What bounds a search by HiGHS."""

from __future__ import annotations

from scheduler.program import Program, Solved, solve


def packed(time_limit_s: float, nodes: int | None) -> Solved:
    """Put the most worth into a bag."""
    program = Program()
    worth = {program.column(1, integer=True): -float(7 + n % 5) for n in range(30)}
    program.row({column: 3.0 + column % 7 for column in worth}, 0.0, 40.0)
    return solve(program, worth, 0.0, time_limit_s, nodes=nodes)


def test_nodes_bound_a_search_in_place_of_the_time() -> None:
    assert packed(0.0, None).values is None
    found = packed(0.0, 1000)
    assert found.values is not None
    assert found.bound == packed(60.0, None).bound
    assert found.seconds == 0.0, "nothing in the result depends on the machine's speed"

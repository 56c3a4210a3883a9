"""Builds linear and mixed integer programs and solves them with HiGHS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LARGE, _TIME_SHARE = 20_000, 0.6
"""HiGHS checks the clock only between linear programs: with more columns than this, its limit is
this share of the time, so that it ends in time."""

_NODE_ITERATIONS = 1_000
"""Most iterations of the simplex method for each node of the limit."""

_INFEASIBLE = (
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,  # every column is bounded
)


@dataclass(slots=True)
class Program:
    """Columns from 0 to ``upper`` and rows over them; ``lower`` is 0 unless raised."""

    upper: list[float] = field(default_factory=list)
    lower: dict[int, float] = field(default_factory=dict)
    integer: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def column(self, upper: float, *, integer: bool) -> int:
        """Add a column; returns its number."""
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.upper) - 1

    def row(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        """Add a row."""
        self.starts.append(len(self.indices))
        self.indices.extend(terms)
        self.values.extend(terms.values())
        self.row_lower.append(lower)
        self.row_upper.append(upper)


@dataclass(slots=True, frozen=True)
class Solved:
    """The result of HiGHS."""

    values: Floats | None
    """Column values, None if it found no feasible solution."""
    bound: float
    """Proven lower bound of the objective, -inf without one."""
    seconds: float
    """The solver's own run time; 0 where nodes bound the search."""
    infeasible: bool
    """The program has no solution: not merely none in time."""


def quiet_solver() -> highspy.Highs:
    """Return HiGHS with one thread and a fixed seed (its default): equal input, equal plans."""
    solver = highspy.Highs()
    for name, value in {"output_flag": False, "parallel": "off", "threads": 1}.items():
        solver.setOptionValue(name, value)
    return solver


def solve(
    program: Program,
    objective: Mapping[int, float],
    offset: float,
    time_limit_s: float,
    *,
    relaxed: bool = False,
    guess: Sequence[float] | None = None,
    gap: float = 0.0,
    nodes: int | None = None,
) -> Solved:
    """Minimise; ``relaxed`` drops integrality, ``guess`` is a known solution to start from.

    The search ends once a solution is proven to be within ``gap`` of the optimum. ``nodes`` bounds
    it instead of the time.
    """
    solver, columns = quiet_solver(), len(program.upper)
    options: dict[str, float] = {"mip_rel_gap": 0.0, "mip_abs_gap": gap}
    if nodes is None:
        share = _TIME_SHARE if columns > _LARGE else 1.0
        options["time_limit"] = max(time_limit_s * share, 0.0)
    else:
        options |= {"mip_max_nodes": nodes, "simplex_iteration_limit": nodes * _NODE_ITERATIONS}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_model(program, objective, offset, relaxed=relaxed))
    if guess is not None:
        known = highspy.HighsSolution()
        known.col_value = list(guess)
        solver.setSolution(known)
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    proven = status == highspy.HighsModelStatus.kOptimal
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    solution = solver.getSolution()
    if relaxed:
        bound = float(info.objective_function_value) if proven else -np.inf
    else:
        bound = float(info.mip_dual_bound)
    return Solved(
        values=np.asarray(solution.col_value) if found else None,
        bound=bound,
        seconds=float(solver.getRunTime()) if nodes is None else 0.0,
        infeasible=status in _INFEASIBLE,
    )


def _model(
    program: Program, objective: Mapping[int, float], offset: float, *, relaxed: bool
) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    columns = len(program.upper)
    cost, lower = np.zeros(columns), np.zeros(columns)
    for column, weight in objective.items():
        cost[column] = weight
    for column, value in program.lower.items():
        lower[column] = value
    lp.num_col_, lp.num_row_ = columns, len(program.starts)
    lp.offset_ = offset
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = lower, np.asarray(program.upper, np.float64)
    lp.row_lower_ = np.asarray(program.row_lower, np.float64)
    lp.row_upper_ = np.asarray(program.row_upper, np.float64)
    if not relaxed:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[flag] for flag in program.integer]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.asarray([*program.starts, len(program.indices)], np.int32)
    lp.a_matrix_.index_ = np.asarray(program.indices, np.int32)
    lp.a_matrix_.value_ = np.asarray(program.values, np.float64)
    return lp

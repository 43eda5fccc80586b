"""One minimiser for all training: L-BFGS with a hard budget of evaluations, which returns the best point it saw."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

Vector = np.ndarray
Progress = Callable[[float], object]


class Minimum(NamedTuple):
    """The best point seen, and why the search ended there."""

    x: Vector
    value: float
    evaluations: int
    stopped: str


class _BudgetSpent(Exception):
    pass


def minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    *,
    evaluations: int,
    bounds: Sequence[tuple[float, float]] | None = None,
    tolerance: float = 1e-9,
    memory: int = 50,
    on_progress: Progress | None = None,
) -> Minimum:
    """Minimise a function given with its gradient.

    Where the function is not finite (a covariance that is none), the search sees a bowl around the best point
    instead, which sends it back. When a line search fails, the search starts once more from the best point with an
    empty memory. Counting happens inside the function, so no line search can exceed the budget.

    Args:
        evaluations: How many times `function` may be called, at most.
        tolerance: Relative decrease of the value below which the search ends.
        on_progress: Called after each evaluation with the fraction of the budget used.
    """
    if evaluations < 1:
        raise ValueError(f"evaluations must be at least 1; given {evaluations}.")
    best_x, best_value, used = np.array(start, dtype=np.float64), np.inf, 0

    def counted(x: Vector) -> tuple[float, Vector]:
        nonlocal best_x, best_value, used
        if used >= evaluations:
            raise _BudgetSpent
        used += 1
        value, gradient = function(x)
        value, gradient = float(value), np.asarray(gradient, dtype=np.float64)
        if on_progress is not None:
            on_progress(used / evaluations)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            if not np.isfinite(best_value):
                raise ValueError(
                    f"The training objective is not finite at its start (value {value}). The data may be of wildly "
                    "different sizes, or the start too far from it: try scaling states to sizes near one."
                )
            away = x - best_x
            steepness = (1 + abs(best_value)) / max(float(away @ away), 1e-300)
            return best_value + steepness * float(away @ away), 2 * steepness * away
        if value < best_value:
            best_x, best_value = x.copy(), value
        return value, gradient

    options = {"maxiter": evaluations, "maxfun": 10 * evaluations, "maxcor": memory, "ftol": tolerance, "gtol": 1e-8}
    stopped = ""
    try:
        for attempt in range(2):
            before = best_value
            result = minimize(counted, best_x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            if result.status == 0:
                stopped = "converged: a further step no longer lowers the objective noticeably"
                break
            stopped = "the line search found no further decrease"
            if attempt and not best_value < before - tolerance * abs(before):
                break
    except _BudgetSpent:
        stopped = f"the budget of {evaluations} evaluations was spent"
    return Minimum(best_x, best_value, used, stopped)

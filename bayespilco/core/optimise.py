"""One minimiser with a hard budget of evaluations, for training and for policy search.

SciPy takes the steps. What SciPy does not do is done around the function that it minimises (`_Budgeted`):

- The budget is kept exactly. SciPy's own limits count iterations, and a line search overshoots them.
- The best point seen is returned, not the last one.
- Where the function is not finite (a covariance that is none, a prediction that explodes), the search sees a bowl
  around the best point instead, which sends it back.

There are two methods. L-BFGS-B remembers a few steps and accepts bounds. BFGS keeps a matrix, the estimated inverse
Hessian. It returns that matrix as `curvature`, and a later search of a similar function can start with it.
"""

import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import Float

Vector = Float[np.ndarray, " parameters"]
Matrix = Float[np.ndarray, "parameters parameters"]
Function = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From a point to the value and the gradient there."""

GRADIENT_TOLERANCE = 1e-4
"""BFGS has converged when no component of the gradient is larger."""
LINE_SEARCH_LIMIT = 20
"""Evaluations that one line search of BFGS may take (as in the original programs)."""


class Reason(enum.StrEnum):
    """Why a minimisation ended. The value is the word that files keep; `sentence` is for people."""

    sentence: str

    CONVERGED = "converged", "it converged: no step lowers the value noticeably"
    BUDGET = "budget", "the budget of evaluations is spent"
    LINE_SEARCH = "line search", f"a line search did not end within {LINE_SEARCH_LIMIT} evaluations"
    NO_DESCENT = "no descent", "no lower value was found along the gradient"
    NOT_FINITE = "not finite", "the value at the start is not finite"
    TOO_FEW_DATA = "too few data", "there are too few data to learn from: the starting values were kept"

    def __new__(cls, word: str, sentence: str = "") -> "Reason":
        member = str.__new__(cls, word)
        member._value_ = word
        member.sentence = sentence
        return member

    @classmethod
    def _missing_(cls, value: object) -> "Reason | None":
        """Version 0.1 kept sentences in its files."""
        return next((reason for begins, reason in _OLD_SENTENCES.items() if str(value).startswith(begins)), None)


_OLD_SENTENCES = {
    "the gradient vanished": Reason.CONVERGED,
    "converged": Reason.CONVERGED,
    "the budget of": Reason.BUDGET,
    "a line search took": Reason.LINE_SEARCH,
    "no further descent": Reason.NO_DESCENT,
    "the line search found no": Reason.NO_DESCENT,
}


class Minimum(NamedTuple):
    """The best point seen, and why the search ended."""

    x: Vector
    value: float
    evaluations: int
    reason: Reason
    history: Float[np.ndarray, " evaluations"]
    """The best value after each evaluation."""
    curvature: Matrix | None = None
    """BFGS's estimate of the inverse Hessian at the end. L-BFGS-B has none."""


class NotFiniteError(ValueError):
    """The function is not finite where the search starts, so there is nothing to return to."""


def minimise(
    function: Function,
    start: Vector,
    *,
    evaluations: int,
    method: Literal["L-BFGS-B", "BFGS"] = "L-BFGS-B",
    bounds: Sequence[tuple[float, float]] | None = None,
    tolerance: float = 1e-9,
    memory: int = 50,
    curvature: Matrix | None = None,
    on_progress: Callable[[float], object] | None = None,
    on_evaluation: Callable[[int, float], object] | None = None,
) -> Minimum:
    """Minimise a function that is given with its gradient.

    Args:
        evaluations: `function` is called at most this many times.
        method: `bounds`, `tolerance` and `memory` are for L-BFGS-B, `curvature` is for BFGS.
        bounds: The lowest and highest value of each parameter.
        tolerance: The search ends when the value decreases by less than this share.
        memory: How many steps L-BFGS-B remembers.
        curvature: The inverse Hessian that BFGS starts with: `Minimum.curvature` of an earlier search.
        on_progress: Called after each evaluation with the fraction of the budget used.
        on_evaluation: Called after each evaluation with their number and the best value so far.

    Raises:
        NotFiniteError: The function is not finite at `start`.
    """
    if evaluations < 1:
        raise ValueError(f"evaluations must be at least 1; given {evaluations}.")
    if method == "BFGS" and bounds is not None:
        raise ValueError("BFGS has no bounds: leave them out, or use L-BFGS-B.")
    if method == "L-BFGS-B" and curvature is not None:
        raise ValueError("L-BFGS-B cannot start with a curvature: leave it out, or use BFGS.")
    objective = _Budgeted(function, start, evaluations, on_progress, on_evaluation)
    estimate = _Curvature(len(start), curvature) if method == "BFGS" else None
    try:
        if estimate is None:
            reason = _minimise_lbfgs(objective, bounds, tolerance, memory)
        else:
            reason = _minimise_bfgs(objective, estimate)
    except _Stop as stop:
        reason = stop.reason
    return Minimum(
        objective.x,
        objective.value,
        len(objective.history),
        reason,
        np.asarray(objective.history),
        None if estimate is None else estimate.positive,
    )


class _Stop(Exception):
    """Ends a search from inside its objective."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


class _Budgeted:
    """The function as SciPy sees it: counted, guarded, and with a memory of its best point."""

    def __init__(
        self,
        function: Function,
        start: np.ndarray,
        evaluations: int,
        on_progress: Callable[[float], object] | None,
        on_evaluation: Callable[[int, float], object] | None,
    ) -> None:
        self._function, self.evaluations = function, evaluations
        self._on_progress, self._on_evaluation = on_progress, on_evaluation
        self.x, self.value = np.array(start, dtype=np.float64), np.inf
        self.history: list[float] = []

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        if len(self.history) >= self.evaluations:
            raise _Stop(Reason.BUDGET)
        value, gradient = self._function(x)
        value, gradient = float(value), np.asarray(gradient, dtype=np.float64)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            value, gradient = self._bowl(x, value)
        elif value < self.value:
            self.x, self.value = x.copy(), value
        self.history.append(self.value)
        if self._on_progress is not None:
            self._on_progress(len(self.history) / self.evaluations)
        if self._on_evaluation is not None:
            self._on_evaluation(len(self.history), self.value)
        return value, gradient

    def _bowl(self, x: np.ndarray, value: float) -> tuple[float, np.ndarray]:
        """A parabola with its minimum at the best point, higher at `x` by one plus the size of the best value."""
        if not np.isfinite(self.value):
            raise NotFiniteError(
                f"The objective is not finite at its start (value {value}). The data may be of wildly different "
                "sizes, or the start too far from them: try scaling states to sizes near one."
            )
        away = x - self.x
        steepness = (1 + abs(self.value)) / max(float(away @ away), 1e-300)
        return self.value + steepness * float(away @ away), 2 * steepness * away


def _minimise_lbfgs(
    objective: _Budgeted, bounds: Sequence[tuple[float, float]] | None, tolerance: float, memory: int
) -> Reason:
    """When a line search fails, start once more from the best point with an empty memory."""
    most = objective.evaluations
    options = {"maxiter": most, "maxfun": 10 * most, "maxcor": memory, "ftol": tolerance, "gtol": 1e-8}
    for attempt in range(2):
        before = objective.value
        result = scipy.optimize.minimize(
            objective, objective.x, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        if result.status == 0:
            return Reason.CONVERGED
        if attempt and not objective.value < before - tolerance * abs(before):
            break
    return Reason.NO_DESCENT


def _minimise_bfgs(objective: _Budgeted, estimate: "_Curvature") -> Reason:
    """BFGS with SciPy's line search. When one fails, start once more, without what was learned of the curvature.

    SciPy's own BFGS multiplies whole matrices in each step. With hundreds of parameters that takes longer than the
    functions that we minimise.
    """
    evaluate = _Remembered(objective)
    for attempt in range(2):
        x = objective.x
        value, gradient = evaluate(x)
        before = value + float(np.linalg.norm(gradient)) / 2  # what SciPy's own begins with
        while np.abs(gradient).max() > GRADIENT_TOLERANCE:
            evaluate.tried = 0
            direction = -(estimate.inverse @ gradient)
            length, following, before = _line_search(evaluate, x, direction, value, gradient, before)
            if length is None:
                break
            step = length * direction
            value, changed = following, evaluate(x + step)[1]
            estimate.learn(step, changed - gradient)
            x, gradient = x + step, changed
        else:
            return Reason.CONVERGED
        if attempt == 0:
            estimate.forget()
    return Reason.NO_DESCENT


def _line_search(
    evaluate: "_Remembered", x: np.ndarray, direction: np.ndarray, value: float, gradient: np.ndarray, before: float
) -> tuple[float | None, float, float]:
    """How far to go, the value there, and the value here; None if nothing was found along this direction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=scipy.optimize.OptimizeWarning)
        warnings.filterwarnings("ignore", message="The line search algorithm")
        length, _, _, following, _, slope = scipy.optimize.line_search(
            lambda x: evaluate(x)[0],
            lambda x: evaluate(x)[1],
            x,
            direction,
            gradient,
            value,
            before,
            maxiter=LINE_SEARCH_LIMIT,
        )
    return (None, value, before) if length is None or slope is None else (length, following, value)


class _Remembered:
    """The objective with its latest points: a line search asks for values and gradients one by one."""

    def __init__(self, objective: _Budgeted) -> None:
        self._objective = objective
        self.tried = 0
        """Evaluations of the current line search."""
        self._latest: dict[bytes, tuple[float, np.ndarray]] = {}

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        key = x.tobytes()
        if key not in self._latest:
            within_budget = len(self._objective.history) < self._objective.evaluations
            if within_budget and self.tried >= LINE_SEARCH_LIMIT:
                raise _Stop(Reason.LINE_SEARCH)
            self.tried += 1
            self._latest[key] = self._objective(x)
            if len(self._latest) > LINE_SEARCH_LIMIT:
                del self._latest[next(iter(self._latest))]
        return self._latest[key]


class _Curvature:
    """The estimated inverse Hessian, learned from steps and from how they change the gradient."""

    def __init__(self, size: int, start: np.ndarray | None) -> None:
        self.inverse = np.eye(size) if start is None else np.array(start)

    def forget(self) -> None:
        self.inverse = np.eye(len(self.inverse))

    def learn(self, step: np.ndarray, change: np.ndarray) -> None:
        """The BFGS update. It keeps the estimate positive definite if the gradient grew along the step."""
        if (along := step @ change) > 0:
            turned = self.inverse @ change
            mixed = np.outer(step, turned)
            self.inverse += ((1 + change @ turned / along) * np.outer(step, step) - mixed - mixed.T) / along

    @property
    def positive(self) -> np.ndarray:
        """The estimate, without what rounding has made of its smallest eigenvalues."""
        symmetric: np.ndarray = (self.inverse + self.inverse.T) / 2
        try:
            np.linalg.cholesky(symmetric)
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(symmetric)
            symmetric = (vectors * np.maximum(values, 1e-9 * values[-1])) @ vectors.T
            symmetric = (symmetric + symmetric.T) / 2
        return symmetric

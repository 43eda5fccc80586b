"""The minimiser: the budget kept, the best point returned, back from where there is no value, and why it ended."""

import json
import pickle
from typing import Literal

import numpy as np
import pytest
import scipy.optimize

from bayespilco.core.optimise import LINE_SEARCH_LIMIT, Function, Minimum, NotFiniteError, Reason, minimise

Method = Literal["L-BFGS-B", "BFGS"]
METHODS: tuple[Method, ...] = ("L-BFGS-B", "BFGS")
START = np.array([-1.9, 2.0])
HESSIAN = np.array([[3.0, 0.5], [0.5, 1.0]])


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = 1 - x[0], x[1] - x[0] ** 2
    return a**2 + 100 * b**2, np.array([-2 * a - 400 * x[0] * b, 200 * b])


def quadratic(x: np.ndarray) -> tuple[float, np.ndarray]:
    return x @ HESSIAN @ x / 2, HESSIAN @ x


def broken_off(x: np.ndarray) -> tuple[float, np.ndarray]:
    """A bowl without a value behind its bottom, where the first step of a search ends."""
    return quadratic(x) if x[0] > -0.05 else (np.nan, np.full(2, np.nan))


def uphill(x: np.ndarray) -> tuple[float, np.ndarray]:
    """With a gradient that points the wrong way: no step along it ever helps."""
    return x @ x, -2 * x


class Watched:
    """A function that remembers where it was called."""

    def __init__(self, function: Function) -> None:
        self.function, self.points = function, list[np.ndarray]()

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        self.points.append(x.copy())
        return self.function(x)


@pytest.mark.parametrize(("method", "budget"), [("L-BFGS-B", 16), ("BFGS", 27)])
def test_budget_is_kept_and_the_best_point_returned(method: Method, budget: int) -> None:
    function = Watched(rosenbrock)
    short = minimise(function, START, evaluations=budget, method=method)
    assert short.evaluations == len(function.points) == budget and short.reason is Reason.BUDGET
    values = [rosenbrock(x)[0] for x in function.points]
    assert short.value == min(values) == rosenbrock(short.x)[0] != values[-1], "the best should not be the last here"
    full = minimise(rosenbrock, START, evaluations=500, method=method)
    assert full.reason is Reason.CONVERGED and full.evaluations < 200
    np.testing.assert_allclose(full.x, [1.0, 1.0], atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_search_returns_from_where_there_is_no_value(method: Method) -> None:
    function = Watched(broken_off)
    found = minimise(function, np.array([0.4, 0.3]), evaluations=100, method=method)
    assert not np.isfinite(broken_off(function.points[1])[0]), "the first step should end where there is no value"
    assert found.reason is Reason.CONVERGED and found.evaluations < 40 and np.isfinite(found.history).all()
    np.testing.assert_allclose(found.x, [0.0, 0.0], atol=1e-3)


def test_where_nothing_goes_wrong_it_is_scipys_own() -> None:
    theirs = scipy.optimize.minimize(
        rosenbrock, START, jac=True, method="L-BFGS-B", options={"maxcor": 50, "ftol": 1e-9, "gtol": 1e-8}
    )
    ours = minimise(rosenbrock, START, evaluations=500)
    assert ours.value == theirs.fun and np.array_equal(ours.x, theirs.x) and ours.evaluations == theirs.nfev


def test_bfgs_takes_about_as_many_evaluations_as_scipys() -> None:
    """The same updates with one of SciPy's line searches; its own BFGS tries another one first."""
    theirs = scipy.optimize.minimize(rosenbrock, START, jac=True, method="BFGS", options={"gtol": 1e-4})
    ours = minimise(rosenbrock, START, evaluations=500, method="BFGS")
    assert ours.reason is Reason.CONVERGED and ours.evaluations < 1.3 * theirs.nfev
    assert ours.curvature is not None
    hessian = np.array([[802.0, -400.0], [-400.0, 200.0]])
    np.testing.assert_allclose(ours.curvature @ hessian, np.eye(2), atol=0.2)


def test_bfgs_starts_once_more_without_a_curvature_that_misleads() -> None:
    """With an inverse Hessian that is not positive definite the first direction leads uphill."""
    found = minimise(quadratic, START, evaluations=80, method="BFGS", curvature=-np.eye(2))
    assert found.reason is Reason.CONVERGED and found.value < 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_progress_is_reported_and_kept(method: Method) -> None:
    fractions: list[float] = []
    seen: list[tuple[int, float]] = []
    found = minimise(
        rosenbrock,
        START,
        evaluations=12,
        method=method,
        on_progress=fractions.append,
        on_evaluation=lambda count, best: seen.append((count, best)),
    )
    assert fractions == [n / 12 for n in range(1, 13)]
    assert seen == list(enumerate(found.history, 1))
    assert (np.diff(found.history) <= 0).all() and found.history[-1] == found.value


def test_curvature_is_the_inverse_hessian_and_saves_evaluations() -> None:
    found = minimise(quadratic, START, evaluations=50, method="BFGS")
    assert found.curvature is not None and found.reason is Reason.CONVERGED
    np.testing.assert_allclose(found.curvature, np.linalg.inv(HESSIAN), rtol=0.02)
    assert np.array_equal(found.curvature, found.curvature.T)
    # With the inverse Hessian, Newton's step ends at the minimum of a quadratic. SciPy tries a shorter one first.
    knowing = minimise(quadratic, START, evaluations=50, method="BFGS", curvature=np.linalg.inv(HESSIAN))
    assert knowing.evaluations <= 3 < found.evaluations and knowing.value < 1e-20
    assert minimise(quadratic, START, evaluations=50).curvature is None


def test_bounds_are_kept() -> None:
    found = minimise(quadratic, np.array([2.0, 2.0]), evaluations=50, bounds=[(1.0, 3.0), (-3.0, 3.0)])
    np.testing.assert_allclose(found.x, [1.0, -0.5], atol=1e-6)


def test_a_search_without_descent_says_so() -> None:
    found = minimise(uphill, START, evaluations=500)
    assert found.reason is Reason.NO_DESCENT and found.evaluations < 100
    assert np.array_equal(found.x, START)


def test_a_line_search_of_bfgs_is_limited() -> None:
    """An endless slope: no step is long enough, and each is longer than the one before."""
    found = minimise(lambda x: (-x[0], -np.ones(1)), np.zeros(1), evaluations=500, method="BFGS")
    assert found.reason is Reason.LINE_SEARCH and found.evaluations == 1 + LINE_SEARCH_LIMIT
    assert found.value == -found.x[0] == found.history[-1] < -1e3
    within = minimise(lambda x: (-x[0], -np.ones(1)), np.zeros(1), evaluations=1 + LINE_SEARCH_LIMIT, method="BFGS")
    assert within.reason is Reason.BUDGET


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [(np.nan, np.zeros(2)), (np.inf, np.zeros(2)), (1.0, np.array([0.0, np.nan]))])
def test_a_start_without_a_value_is_an_error(bad: tuple[float, np.ndarray], method: Method) -> None:
    with pytest.raises(NotFiniteError, match=r"not finite at its start .* try scaling"):
        minimise(lambda x: bad, START, evaluations=5, method=method)


def test_mistakes_are_met_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="evaluations must be at least 1; given 0"):
        minimise(quadratic, START, evaluations=0)
    with pytest.raises(ValueError, match="BFGS has no bounds"):
        minimise(quadratic, START, evaluations=5, method="BFGS", bounds=[(0.0, 1.0)] * 2)
    with pytest.raises(ValueError, match="cannot start with a curvature"):
        minimise(quadratic, START, evaluations=5, curvature=np.eye(2))


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_a_word_in_files_and_a_sentence_for_people(reason: Reason) -> None:
    assert Reason(json.loads(json.dumps(reason))) is reason is pickle.loads(pickle.dumps(reason))
    assert reason.value == reason.name.lower().replace("_", " ") and len(reason.sentence.split()) > 3


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("the gradient vanished", Reason.CONVERGED),
        ("converged: a further step no longer lowers the objective noticeably", Reason.CONVERGED),
        ("the budget of 150 evaluations is used up", Reason.BUDGET),
        ("the budget of 60 evaluations was spent", Reason.BUDGET),
        ("a line search took more than 20 evaluations: no further descent", Reason.LINE_SEARCH),
        ("no further descent along the gradient", Reason.NO_DESCENT),
        ("the line search found no further decrease", Reason.NO_DESCENT),
    ],
)
def test_sentences_of_old_files_are_understood(sentence: str, reason: Reason) -> None:
    assert Reason(sentence) is reason
    with pytest.raises(ValueError, match="not a valid Reason"):
        Reason("whatever")


def test_the_old_import_path_works() -> None:
    from bayespilco.training import minimise as old  # type: ignore[attr-defined]

    assert old.minimise is minimise and old.Minimum is Minimum

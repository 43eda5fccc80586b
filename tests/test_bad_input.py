"""Bad input is refused with a sentence: what was wrong, what was given, what to try."""

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import LinearPolicy, RBFPolicy
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, condition, condition_sparse
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode, batch
from tests import systems

TWO = AngleFeatures((), (0, 1))


def gp(**changes: Any) -> GaussianProcess:
    fields = {
        "inputs": np.zeros((3, 2)),
        "length_scales": np.ones((1, 2)),
        "signal_variance": np.ones(1),
        "weights": np.zeros((1, 3)),
        "precision": None,
        "slope": np.zeros((1, 2)),
        "offset": np.zeros(1),
    }
    return GaussianProcess(**(fields | changes))


def conditioned(sparse: bool = False, **changes: Any) -> GaussianProcess:
    arguments = {
        "inputs": np.arange(6.0).reshape(3, 2),
        "targets": np.ones((3, 1)),
        "length_scales": np.ones((1, 2)),
        "signal_variance": np.ones(1),
        "noise_variance": np.full(1, 0.1),
    } | changes
    return condition_sparse(**arguments) if sparse else condition(**arguments)


def dynamics(**changes: Any) -> Dynamics:
    fields = {
        "gp": systems.gp(),
        "features": AngleFeatures((1,), (0, 1, 2)),
        "sensors": np.ones(2),
        "process_noise": np.zeros(2),
    }
    return Dynamics(**(fields | changes))


def rbf(**changes: Any) -> RBFPolicy:
    fields = {
        "centroids": np.zeros((4, 2)),
        "targets": np.zeros((4, 1)),
        "log_length_scales": np.zeros((1, 2)),
        "features": TWO,
        "limits": np.ones(1),
    }
    return RBFPolicy(**(fields | changes))


def linear(**changes: Any) -> LinearPolicy:
    fields = {"matrix": np.zeros((1, 2)), "offset": np.zeros(1), "features": TWO, "limits": np.ones(1)}
    return LinearPolicy(**(fields | changes))


NAN = np.nan
DUPLICATES = {"inputs": np.zeros((3, 2)), "noise_variance": np.full(1, 1e-300)}

CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    # Gaussian
    "scalar mean": (lambda: Gaussian(0.0, [[1.0]]), ["shape", r"\(\)", "one dimension"]),
    "vector for a covariance": (lambda: Gaussian([0.0, 0.0], [1.0, 1.0]), ["covariance", r"\(2,\)"]),
    "mean not finite": (lambda: Gaussian([NAN], [[1.0]]), ["mean", "finite", "nan"]),
    "covariance not finite": (lambda: Gaussian([0.0], [[np.inf]]), ["covariance", "finite", "inf"]),
    "asymmetric": (lambda: Gaussian([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), ["symmetric", "given", "Try"]),
    "negative eigenvalue": (lambda: Gaussian([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), ["eigenvalue", "-1", "squared"]),
    # GaussianProcess
    "points as a vector": (lambda: gp(inputs=np.zeros(3)), ["inputs", r"\(3,\)", r"\(points, input\)"]),
    "weights of another size": (lambda: gp(weights=np.zeros((1, 4))), ["weights", r"\(1, 3\)", r"given \(1, 4\)"]),
    "weights not finite": (lambda: gp(weights=np.full((1, 3), NAN)), ["weights", "finite", "nan"]),
    "inputs not finite": (lambda: gp(inputs=np.full((3, 2), NAN)), ["inputs", "finite", "nan"]),
    "negative length-scale": (lambda: gp(length_scales=[[1.0, -1.0]]), ["length_scales", "positive", "-1"]),
    "length-scale not a number": (lambda: gp(length_scales=[[1.0, NAN]]), ["length_scales", "positive", "nan"]),
    "no signal": (lambda: gp(signal_variance=[0.0]), ["signal_variance", "positive", "0"]),
    "half a joint covariance": (lambda: gp(cross_cov=np.zeros((1, 3, 3))), ["cross_cov", "linear_cov", "both"]),
    "padded to fewer": (lambda: gp().padded(2), ["3 points", "2"]),
    # Conditioning
    "no points": (
        lambda: conditioned(inputs=np.zeros((0, 2)), targets=np.zeros((0, 1))),
        ["at least one", r"\(0, 2\)"],
    ),
    "no inducing points": (lambda: conditioned(True, inducing=np.zeros((0, 2))), ["inducing", "at least one"]),
    "no noise": (lambda: conditioned(noise_variance=np.zeros(1)), ["noise_variance", "positive", "0"]),
    "targets not finite": (lambda: conditioned(targets=np.full((3, 1), NAN)), ["targets", "finite", "nan"]),
    "duplicated points without noise": (
        lambda: conditioned(**DUPLICATES),
        ["singular", "duplicates", "noise_variance"],
    ),
    "duplicated inducing points": (lambda: conditioned(True, inducing=np.zeros((2, 2))), ["singular", "ridge"]),
    # Dynamics
    "one noise for two states": (lambda: dynamics(sensors=[1.0]), ["sensor_noise", r"\(2,\)", r"given \(1,\)"]),
    "no sensor noise": (lambda: dynamics(sensors=[0.0, 1.0]), ["sensor_noise", "positive", "0"]),
    "negative process noise": (lambda: dynamics(process_noise=[-1.0, 1.0]), ["process_noise", "negative", "-1"]),
    "noise not finite": (lambda: dynamics(process_noise=[NAN, 1.0]), ["process_noise", "finite", "nan"]),
    "features of another size": (
        lambda: dynamics(features=AngleFeatures((1,), (0, 1))),
        ["features", "4", "5", "inputs"],
    ),
    # Policies
    "centroids of another size": (lambda: rbf(centroids=np.zeros((4, 3))), ["centroids", r"\(4, 2\)", r"\(4, 3\)"]),
    "targets of another size": (lambda: rbf(targets=np.zeros((4, 2))), ["targets", r"\(4, 1\)", r"\(4, 2\)"]),
    "targets as a vector": (lambda: rbf(targets=np.zeros(4)), ["targets", r"given \(4,\)"]),
    "centroids not finite": (lambda: rbf(centroids=np.full((4, 2), NAN)), ["centroids", "finite", "nan"]),
    "no limits": (lambda: rbf(limits=[0.0]), ["limits", "positive", "0"]),
    "limits not finite": (lambda: linear(limits=[np.inf]), ["limits", "finite", "inf"]),
    "matrix of another size": (lambda: linear(matrix=np.zeros((2, 2))), ["matrix", r"\(1, 2\)", r"\(2, 2\)"]),
    "matrix not finite": (lambda: linear(matrix=[[NAN, 0.0]]), ["matrix", "finite", "nan"]),
    # Cost
    "target of another size": (
        lambda: SaturatingCost(TWO, np.zeros(3), np.eye(2)),
        ["target", r"\(2,\)", r"given \(3,\)"],
    ),
    "target not finite": (lambda: SaturatingCost(TWO, [NAN, 0.0], np.eye(2)), ["target", "finite", "nan"]),
    "negative weight": (lambda: SaturatingCost(TWO, np.zeros(2), -np.eye(2)), ["weight", "negative eigenvalue"]),
    # Episodes
    "as many observations as actions": (
        lambda: Episode(np.zeros((3, 2)), np.zeros((3, 1))),
        ["one more observation", r"\(3, 2\)"],
    ),
    "no transition": (lambda: Episode(np.zeros((1, 2)), np.zeros((0, 1))), ["at least one action"]),
    "observation not finite": (
        lambda: Episode([[0.0], [np.inf], [0.0]], np.zeros((2, 1))),
        ["observations", "row 1", "inf", "Cut"],
    ),
    "action missing": (
        lambda: Episode([[0.0], [NAN], [0.0]], [[0.0], [NAN]]),
        ["actions", "row 1", "nan", "Cut"],
    ),
    "states of another length": (
        lambda: Episode(np.zeros((3, 2)), np.zeros((2, 1)), states=np.zeros((2, 2))),
        ["states", "as many rows as its observations, 3", r"\(2, 2\)"],
    ),
    "no episodes": (lambda: batch([]), ["at least one"]),
    "episodes of different plants": (
        lambda: batch([Episode(np.zeros((2, 1)), np.zeros((1, 1))), Episode(np.zeros((2, 2)), np.zeros((1, 1)))]),
        ["same numbers", r"\(2, 1\)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_with_a_sentence(name: str) -> None:
    make, words = CASES[name]
    with pytest.raises(ValueError) as caught:
        make()
    message = str(caught.value)
    for word in words:
        assert re.search(word, message), f"{word!r} is not in: {message}"


def test_good_input_passes() -> None:
    gp(), conditioned(), dynamics(), rbf(), linear()
    conditioned(True, inducing=np.ones((1, 2)))
    Gaussian([0.0, 0.0], np.zeros((2, 2)))
    assert gp(length_scales=[[1.0, np.inf]])(jnp.ones(2)).shape == (1,)


def test_batch_pads_with_what_is_not_observed() -> None:
    short, long = Episode([[1.0], [2.0]], [[0.5]]), Episode([[1.0], [2.0], [3.0]], [[0.5], [0.6]])
    trials = batch([short, long, long])
    assert trials.observations.shape[1:] == (3, 1) and trials.actions.shape[1:] == (2, 1)
    np.testing.assert_array_equal(trials.observed[:3].sum(axis=(1, 2)), [2, 3, 3])
    np.testing.assert_array_equal(trials.transitions[:3].sum(axis=1), [1, 2, 2])
    assert not trials.observed[3:].any(), "whatever number of trials it is padded to"
    np.testing.assert_array_equal(trials.observations[0, :, 0], [1.0, 2.0, 0.0])

"""Few compilations: what an episode needs is compiled once, however many episodes follow."""

import logging
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from bayespilco import learn
from bayespilco.core import compilation
from bayespilco.core.compilation import compiled
from bayespilco.core.precision import float64


def test_a_run_compiles_each_function_a_handful_of_times(caplog: pytest.LogCaptureFixture) -> None:
    """Predictions depend on no number of episodes; training does in steps (2 trials, 6, 12, ...)."""
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        learn("spring", episodes=4, points=6, evaluations=2)
    names = re.findall(r"Compiling (?:jit\()?([\w.]+)", caplog.text)
    counts = Counter(name for name in names if name.startswith("_"))
    assert counts["_value_and_gradient"] == 4, "two predictors, and training with 2 trials and with 6"
    assert max(counts.values()) <= 4, counts
    assert counts["_draw_many"] == 1, "for fits of any evidence, after any number of evaluations"
    assert counts["_simulate"] <= 3, "episodes of random actions and of a policy, and runs of a promise"
    assert names.count("scan") <= 4, "loops that are not part of a function: none per episode, or per policy"


@float64
def test_compiled_within_compiled() -> None:
    inner = compiled(lambda x: 2 * x)
    outer = compiled(lambda x: inner(x) + 1)
    assert float(outer(jnp.asarray(3.0))) == 7.0
    assert float(jax.grad(lambda x: outer(x) ** 2)(jnp.asarray(3.0))) == 28.0


@float64
def test_options_that_this_xla_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation._known_options.cache_clear()
    monkeypatch.setattr(compilation, "OPTIONS", {"xla_cpu_no_such_option": True})
    try:
        assert compilation._known_options() == {}
        assert float(compiled(lambda x: x + 1)(jnp.asarray(1.0))) == 2.0
    finally:
        compilation._known_options.cache_clear()

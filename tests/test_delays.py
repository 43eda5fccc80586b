"""Which delay the data have, by evidence: the true one is found, and little data is called little."""

import jax
import pytest

from bayespilco import Episode, tasks
from bayespilco.execution import RandomActions, execute_many
from bayespilco.experiments.delays import DelayEvidence, delay_evidence


def episodes(delay: int, count: int) -> list[Episode]:
    task = tasks.spring().with_delay(delay)
    many = execute_many(task, RandomActions(task.action_limits), jax.random.split(jax.random.key(3), count))
    return [Episode(many.observations[k], many.actions[k]) for k in range(count)]


@pytest.mark.parametrize("delay", [0, 2])
def test_the_true_delay_explains_the_data_best(delay: int) -> None:
    found = delay_evidence(tasks.spring(), episodes(delay, 3), range(4), points=8, evaluations=20)
    assert found.best == delay and found.margin > 5, found
    assert found.sentence.startswith("Clear") and f"a delay of {delay} steps ({200 * delay} ms)" in found.sentence


def test_the_sentence_says_how_sure_it_is() -> None:
    def sentence(*evidence: float) -> str:
        return DelayEvidence((0, 1, 2), evidence, 0.1).sentence

    assert sentence(0.0, 30.0, 2.0) == (
        "Clear: a delay of 1 step (100 ms) explains the data best, by 28.0 nats over 2."
    )
    assert sentence(4.0, 0.0, 1.0).startswith("Likely: a delay of 0 steps (0 ms)")
    assert sentence(1.6, 0.0, 1.0).startswith("Too close to tell")

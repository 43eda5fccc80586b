"""Data of your own: a controller from episodes that were logged before, without another one on the plant.

Here somebody pushed the mass on a spring by hand, three times. Where you have a log, leave out what makes one; its
columns are described in docs/howto/own-data.md. The command for it is

    bayespilco learn spring --from-data log.csv --episodes 1
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

from bayespilco import execute, export, learn, logs, tasks
from bayespilco.execution import RandomActions


def write_log(path: Path) -> None:
    """What a recorder would leave: time, noisy observations and actions; one sample is missing."""
    task = tasks.spring()
    states, actions = [str(each) for each in task.states], [str(each) for each in task.actions]
    for number in range(3):
        episode = execute(task, RandomActions(task.action_limits), jax.random.key(number))
        observations = np.array(episode.observations)
        observations[7] = np.nan
        logs.append(path, states, actions, task.dt * np.arange(len(observations)), observations, episode.actions)


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        log = Path(directory) / "log.csv"
        write_log(log)
        run = learn("spring", from_data=log, episodes=1, points=15, evaluations=40)
        export.save(run.controller, Path(directory) / "spring.controller")
    costs = np.asarray(run.evaluate(executions=20).costs).sum(axis=1)
    print(
        f"predicted {run.records[-1].predicted_cost:.1f}, executed {costs.mean():.1f} of at most {run.task.steps + 1}"
    )

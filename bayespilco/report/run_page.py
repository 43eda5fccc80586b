"""The report of a run as one page: how it went, what was promised and kept, what was learned and believed.

Everything is computed from the run and, if there are any, executions of its final policy. What belongs to one episode
(a round) is computed once and kept, so that a page that is made again after each episode costs one episode more.
"""

import dataclasses
import html
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco.algorithm import Record
from bayespilco.core.precision import float64
from bayespilco.model.episode import Episode
from bayespilco.report.page import assemble
from bayespilco.report.unseen import Beliefs, beliefs, errors, filter_of
from bayespilco.runs import Run
from bayespilco.tasks import Task
from bayespilco.trust.promises import BATCH, sample_runs
from bayespilco.version import VERSION

SCRIPTS = ("canvas.js", "charts.js", "live.js", "report.js")
STYLES = ("style.css", "report.css")
SAMPLES = BATCH
"""Plants drawn from the model for each sampled prediction."""
PATHS = 5
"""Of these, and of the executions of the final policy, so many are drawn one by one."""
CLOUD = 10
"""Poses drawn from the belief in an animation, at most."""
POSE_NUMBERS = 20_000
"""Coordinates in the animation of one episode, at most: fewer poses are drawn where each has many points."""
BAND = (0.05, 0.95)
"""The quantiles of the sampled predictions that are drawn."""
SLICE = 161
"""Points along each line of the policy's slice."""


class RunPage:
    """Makes the page of a run, again and again while the run grows."""

    def __init__(self, samples: int = SAMPLES) -> None:
        """`samples`: plants drawn for each sampled prediction. With 0 there are none, and the page is made sooner."""
        self.samples = samples
        self._rounds: dict[int, tuple[Record, dict[str, Any]]] = {}

    @float64
    def page(self, run: Run, executed: Episode | None = None, *, version: int | None = None) -> str:
        """The page.

        Args:
            executed: Executions of the final policy, `run.evaluate()`.
            version: While the run is learned: by this number the page knows that there is a newer one (`report.live`).
        """
        data = self.data(run, executed)
        return assemble(
            "report.html",
            styles=STYLES,
            scripts=SCRIPTS,
            data=data | {"live": version is not None, "version": version},
            title=f"{run.task.name}, {run.method}",
            lead=" ".join([*sentences(run, executed), *kept(data["rounds"]), *known(run)]),
            foot=f"Made with bayespilco {VERSION}. One file: it needs no network.",
        )

    @float64
    def data(self, run: Run, executed: Episode | None = None) -> dict[str, Any]:
        """What the page's script draws."""
        task = run.task
        rounds = [self._round(run, number) for number in range(len(run.records))]
        if executed is not None and executed.costs is not None:
            rounds.append(_final_round(run, executed, self.samples))
        return {
            "task": task.name,
            "dt": task.dt,
            "states": [str(state) for state in task.states],
            "actions": task.action_names,
            "sensors": task.sensor_names,
            "low": task.action_low,
            "high": task.action_high,
            "worst": float(task.cost.worst) if np.isfinite(task.cost.worst) else None,
            "rounds": rounds,
            "noise": _noise(run),
            "policy": _policy_slice(run, executed),
            "facts": facts(run),
        }

    def _round(self, run: Run, number: int) -> dict[str, Any]:
        record = run.records[number]
        kept = self._rounds.get(number)
        if kept is None or kept[0] is not record:
            self._rounds[number] = record, _episode_round(run, number, self.samples)
        return self._rounds[number][1]


def page(run: Run, executed: Episode | None = None) -> str:
    """The report of a run as a self-contained HTML page; `executed` as from `run.evaluate()`."""
    return RunPage().page(run, executed)


def inline(run: Run) -> str:
    """The page in a frame, for a notebook; without sampled predictions, which take a while."""
    content = html.escape(RunPage(samples=0).page(run), quote=True)
    style = "width: 100%; height: 720px; border: 1px solid #8888; border-radius: 8px;"
    title = html.escape(run.task.name, quote=True)
    return f'<iframe title="{title}" srcdoc="{content}" sandbox="allow-scripts" style="{style}"></iframe>'


def sentences(run: Run, executed: Episode | None) -> list[str]:
    """How the run went."""
    task, records = run.task, run.records
    steps = sum(record.episode.steps for record in records) + sum(each.steps for each in task.logged[:-1])
    count = len(records)
    said = [
        f"The task {task.name} was learned with the method {run.method} from {count} "
        f"episode{'s' if count > 1 else ''}, {steps * task.dt:.3g} s of data in all."
    ]
    costs = [record.executed_cost for record in records]
    if count > 1:
        best = int(np.argmin(costs))
        said.append(f"The first episode cost {costs[0]:.1f}, the best, number {best + 1}, {costs[best]:.1f}.")
    if executed is None or executed.costs is None:
        last = records[-1]
        said.append(
            f"The last episode cost {last.executed_cost:.1f}; the next is promised to cost {last.predicted_cost:.1f}."
        )
        return said
    totals = np.asarray(executed.costs).sum(axis=1)
    most = task.cost.worst * executed.costs.shape[1]
    of = f" of at most {most:g}" if np.isfinite(most) else ""
    error = totals.std(ddof=1) / np.sqrt(len(totals)) if len(totals) > 1 else 0.0
    said.append(f"The final policy, executed {len(totals)} times, costs {totals.mean():.1f}{of}.")
    if executed.reached is not None:
        share = np.asarray(executed.reached)[:, -1].mean()
        said.append(f"{100 * share:.0f} % of the executions end at the goal.")
    promised = records[-1].predicted_cost
    gap = totals.mean() - promised
    if abs(gap) <= max(2 * error, 0.05 * abs(promised)):
        said.append(f"It kept its promise: {promised:.1f} was predicted.")
    else:
        said.append(f"It was promised to cost {promised:.1f}: {'more' if gap > 0 else 'less'} was paid than promised.")
    return said


def kept(rounds: list[dict[str, Any]]) -> list[str]:
    """How many episodes cost what sampling had predicted. Not the final policy: a mean is narrower than its band."""
    asked = [each for each in rounds if each.get("sampled") and each["totals"] and not each["final"]]
    if not asked:
        return []
    inside = sum(each["sampled"]["total_low"] <= each["totals"][0] <= each["sampled"]["total_high"] for each in asked)
    return [f"Of {len(asked)} episodes with a sampled prediction, {inside} cost what its 90 % band had promised."]


def known(run: Run) -> list[str]:
    """How near the learned noise of the sensors is to the true one."""
    true = run.task.sensor_std
    if true is None:
        return []
    off = np.abs(np.sqrt(np.asarray(run.dynamics.sensor_noise)) / np.asarray(true) - 1).max()
    return [f"The learned sensor noise is within {100 * off:.0f} % of the true one."]


# The rounds: one per episode, and one for the final policy.


def _episode_round(run: Run, number: int, samples: int) -> dict[str, Any]:
    """An episode, with what had been promised for it and what the filter believed."""
    record = run.records[number]
    before = run.records[number - 1] if number else None
    knew = before or record  # the first episode is looked at with hindsight
    how = "with random actions" if not run.task.logged else "from the log"
    made: dict[str, Any] = {
        "title": f"Episode {number + 1}" + ("" if before else f", {how}"),
        "note": "" if before else "Nothing was predicted for it. The belief is that of the model learned from it.",
        "final": False,
    }
    one: Episode = jax.tree.map(lambda leaf: leaf[None], record.episode)
    made |= _executed(run.task, one) | _believed(run.task, knew, record.episode, number)
    if before is not None:
        made |= {"predicted": _predicted(run.task, before), "sampled": _sampled(run, before, number, samples)}
        made["errors"] = made["unseen"]
    del made["unseen"]
    return made


def _final_round(run: Run, executed: Episode, samples: int) -> dict[str, Any]:
    """The final policy: what was promised for it, and many executions."""
    last, count = run.records[-1], len(np.asarray(executed.costs))
    first: Episode = jax.tree.map(lambda leaf: leaf[0], executed)
    made: dict[str, Any] = {
        "title": f"Final policy, executed {count} times",
        "note": f"{min(count, PATHS)} of the executions are drawn. What was observed and believed is of the first.",
        "final": True,
    }
    made |= _executed(run.task, executed) | _believed(run.task, last, first, len(run.records))
    made |= {"predicted": _predicted(run.task, last), "sampled": _sampled(run, last, len(run.records), samples)}
    made["errors"] = made.pop("unseen")
    return made


def _executed(task: Task, episodes: Episode) -> dict[str, Any]:
    """What happened, of one or many episodes; of many, a few are drawn and all are counted."""
    z, u = np.asarray(episodes.observations), np.asarray(episodes.actions)
    costs = None if episodes.costs is None else np.asarray(episodes.costs)
    states = None if episodes.states is None else np.asarray(episodes.states)[:PATHS]
    return {
        "states": _short(states),
        "executed_actions": _short(u[:PATHS]),
        "costs": _short(None if costs is None else costs[:PATHS]),
        "cost_mean": _short(None if costs is None or len(costs) == 1 else costs.mean(axis=0)),
        "cost_std": _short(None if costs is None or len(costs) == 1 else costs.std(axis=0)),
        "totals": _short(None if costs is None else costs.sum(axis=1)),
        "observed": _short(_direct(task, z[0])),
    }


def _direct(task: Task, z: np.ndarray) -> np.ndarray:
    """The states as each observation alone tells them; NaN where it does not."""
    n = len(task.states)
    sensors = task.sensors_with(np.ones(len(task.sensed)))
    C = sensors.C[:, :n]
    inverse = np.linalg.pinv(C)
    told = np.isclose(inverse @ C, np.eye(n)).all(axis=1)
    weighted = np.abs(inverse) > 1e-12
    rest = np.where(np.isnan(z), 0.0, z - sensors.d)
    seen = np.array([[told[i] and not np.isnan(each[weighted[i]]).any() for i in range(n)] for each in z])
    return np.where(seen, rest @ inverse.T, np.nan)


def _believed(task: Task, knew: Record, episode: Episode, number: int) -> dict[str, Any]:
    """The filter's beliefs along an episode, with the model of that time, and how well it predicts."""
    z, u = np.asarray(episode.observations), np.asarray(episode.actions)
    controller = filter_of(task, knew.policy, knew.dynamics)
    along = beliefs(controller, z, u)
    n = len(task.states)
    std = np.sqrt(np.maximum(np.diagonal(along.cov, axis1=1, axis2=2), 0.0))
    found = errors(controller, along, z, u)
    return {
        "belief_mean": _short(along.mean[:, :n]),
        "belief_std": _short(std[:, :n]),
        "animation": _animation(task, episode, along, number),
        "unseen": {"rms": _short(found.rms), "relative": _short(found.relative)},
    }


def _predicted(task: Task, record: Record) -> dict[str, Any]:
    """By moments."""
    p, n = record.prediction, len(task.states)

    def std(cov: Any) -> np.ndarray:
        root: np.ndarray = np.sqrt(np.maximum(np.diagonal(np.asarray(cov), axis1=1, axis2=2), 0.0))
        return root

    return {
        "state_mean": _short(np.asarray(p.state_mean)[:, :n]),
        "state_std": _short(std(p.state_cov)[:, :n]),
        "action_mean": _short(p.action_mean),
        "action_std": _short(std(p.action_cov)),
        "cost_mean": _short(p.cost_mean),
        "cost_std": _short(np.sqrt(np.maximum(np.asarray(p.cost_variance), 0.0))),
        "total": record.predicted_cost,
    }


def _sampled(run: Run, record: Record, number: int, samples: int) -> dict[str, Any] | None:
    """By executing the policy on plants drawn from the model: the runs that a promise is made of."""
    if not samples:
        return None
    parts = [sample_runs(run.task, run.settings, record, number - 1, part) for part in range(-(-samples // BATCH))]
    drawn: Episode = jax.tree.map(lambda *each: np.concatenate(each)[:samples], *parts)

    def band(values: Any) -> dict[str, Any]:
        values = np.asarray(values)
        low, high = np.quantile(np.where(np.isfinite(values), values, 0.0), BAND, axis=0)
        return {"low": _short(low), "high": _short(high), "paths": _short(values[:PATHS])}

    costs = np.asarray(drawn.costs)
    totals = costs.sum(axis=1)
    return {
        "states": band(drawn.states),
        "actions": band(drawn.actions),
        "costs": band(costs) | {"mean": _short(costs.mean(axis=0))},
        "total": float(totals.mean()),
        "total_low": float(np.quantile(totals, BAND[0])),
        "total_high": float(np.quantile(totals, BAND[1])),
    }


def _animation(task: Task, episode: Episode, along: Beliefs, number: int) -> dict[str, Any] | None:
    """The plant at each step, true or else believed, and poses drawn from the belief. None if it cannot be drawn."""
    if task.pose is None:
        return None
    n, known = len(task.states), episode.states is not None
    shown = np.asarray(episode.states) if known else along.mean[:, :n]
    poses = [task.pose(x) for x in shown]
    if any(not np.isfinite(line).all() for pose in poses for line in pose.lines):
        return None
    size = sum(line.size for line in poses[0].lines)
    count = int(np.clip(POSE_NUMBERS // (size * len(poses)), 3, CLOUD))
    normal = np.random.default_rng(number).normal(size=(count, n))
    cloud = []
    for m, V in zip(along.mean, along.cov, strict=True):
        values, vectors = np.linalg.eigh(V[:n, :n])
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        cloud.append([[_points(line) for line in task.pose(m[:n] + root @ each).lines] for each in normal])
    return {
        "known": known,
        "frames": [[_points(line) for line in pose.lines] for pose in poses],
        "cloud": cloud,
        "goal": poses[0].goal,
    }


def _points(line: np.ndarray) -> list[float]:
    """x, y, x, y, ... in millimetres of a plant of a metre."""
    return [round(float(value), 3) for value in np.asarray(line).ravel()]


# What was learned.


def _noise(run: Run) -> dict[str, Any]:
    true = run.task.sensor_std
    process = np.sqrt(np.asarray(run.dynamics.process_noise))[: len(run.task.states)]
    return {
        "learned": _short([np.sqrt(np.asarray(record.dynamics.sensor_noise)) for record in run.records]),
        "true": None if true is None else _short(true),
        "process": _short(process),
    }


def _policy_slice(run: Run, executed: Episode | None) -> dict[str, Any]:
    """The action along each state, the others held where episodes end."""
    task, policy = run.task, run.policy.map()
    n, rows = len(task.states), np.asarray(task.start.mean)
    seen = _where(run, executed)
    at = rows.copy()
    at[:n] = np.median(seen[:, -1], axis=0) if len(seen) else rows[:n]
    flat = seen.reshape(-1, n)
    low, high = np.quantile(flat, (0.01, 0.99), axis=0)
    lines = []
    for i in range(n):
        if i in task.angles:  # one turn
            low[i], high[i] = at[i] - np.pi, at[i] + np.pi
        reach = max(high[i] - low[i], 1e-6)
        values = np.linspace(low[i] - 0.1 * reach, high[i] + 0.1 * reach, SLICE)
        points = np.tile(at, (SLICE, 1))
        points[:, i] = values
        lines.append({"x": _short(values), "y": _short(np.asarray(jax.vmap(policy)(jnp.asarray(points))))})
    return {"at": _short(at[:n]), "lines": lines}


def _where(run: Run, executed: Episode | None) -> np.ndarray:
    """States that were met, of shape (episodes, times, state): true ones, or else what the sensors said."""
    n = len(run.task.states)
    if executed is not None and executed.states is not None:
        return np.asarray(executed.states)
    last = run.records[-1].episode
    if last.states is not None:
        return np.asarray(last.states)[None]
    controller = filter_of(run.task, run.policy, run.dynamics)
    return beliefs(controller, np.asarray(last.observations), np.asarray(last.actions)).mean[None, :, :n]


def facts(run: Run) -> list[tuple[str, str]]:
    """The configuration, as a table."""
    task = run.task
    limits = zip(task.actions, np.asarray(task.action_low), np.asarray(task.action_high), strict=True)
    described = [
        ("task", task.name),
        ("episode", f"{task.steps} steps of {task.dt:.4g} s"),
        ("states", ", ".join(map(str, task.states))),
        ("sensors", ", ".join(task.sensor_names)),
        ("actions", ", ".join(f"{action} from {low:g} to {high:g}" for action, low, high in limits)),
    ]
    if task.hidden:
        described.append(("hidden states", ", ".join(map(str, task.hidden))))
    if task.action_delay:
        described.append(("action delay", f"{task.action_delay} steps"))
    settings = [(name.replace("_", " "), str(value)) for name, value in dataclasses.asdict(run.settings).items()]
    return [*described, *settings, ("version", VERSION)]


def _short(values: Any, digits: int = 4) -> Any:
    """Nested lists of numbers with a few digits: enough for a picture."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    flat = [float(f"{value:.{digits}g}") for value in array.ravel()]
    return np.array(flat).reshape(array.shape).tolist()


__all__ = ["RunPage", "facts", "inline", "page", "sentences"]

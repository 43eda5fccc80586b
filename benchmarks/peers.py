"""Peers on the same plant: SAC and PPO of Stable-Baselines3 on a noisy task, by seconds of interaction.

    python benchmarks/peers.py train --out docs/results/peers --seeds 3
    python benchmarks/peers.py figure --out docs/results/peers --ours curves/results.json

`train` makes an environment of its own (build/peers), installs there what it needs, and learns the cart-pole through
Gymnasium (`bayespilco.environments`): noisy observations, the last four stacked; the reward of a step is 1 less its
cost. Now and then the policy so far is executed a hundred times, without noise of its own, and scored as ours are:
total cost of the latent state, the first included. These executions are not data. It ends after `--steps`, or when it
has cost at most `--until` twice in a row. One JSON file for each algorithm and seed; the same command goes on after an
interruption, from the last measurement.

`figure` draws them beside learning curves of ours (`results.json` of `bayespilco learning-curves`).

Stable-Baselines3 needs PyTorch, whose usual wheel brings gigabytes for graphics cards. Another one can be asked for:
`--torch "torch==2.13.0+cpu"`, with pip's own settings saying where it is found.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STACKED = 4
"""Observations that a policy sees: the last ones."""
EXECUTIONS = 100
DOUBLING = (600, 1200, 2400, 4800, 7200, 9600, 14400, 19200, 28800, 38400, 50400)
"""After how many steps policies are measured: multiples of PPO's batches."""
BATCH = 600
"""Steps of one batch of PPO: ten episodes. (Its usual 2048 would be 68 s.)"""
COLOURS = {"sac": "#D55E00", "ppo": "#009E73"}


def make_environment(directory: Path, torch: str) -> Path:
    """An environment with Stable-Baselines3 and this library; its Python. What is there already is kept."""
    python = directory / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready, wanted = directory / "ready", f"{torch}\n"
    if ready.exists() and ready.read_text() == wanted:
        return python
    venv.create(directory, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, torch], check=True)
    subprocess.run([*install, "stable-baselines3", "gymnasium>=1.0", str(ROOT)], check=True)
    ready.write_text(wanted)
    return python


def measured_at(steps: int) -> list[int]:
    """After how many steps a policy is measured, the last included."""
    return [*(each for each in DOUBLING if each < steps), steps]


def learn(algorithm: str, seed: int, given: argparse.Namespace) -> None:
    """One algorithm and seed, from where it was left. Runs in the environment made for it."""
    import gymnasium as gym
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from bayespilco import tasks
    from bayespilco.environments import TaskEnvironment

    torch.set_num_threads(1)
    task = tasks.TASKS[given.task]()

    def stacked() -> gym.Env:
        env = gym.wrappers.TimeLimit(TaskEnvironment(task), task.steps)
        return gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(env, STACKED))

    kind = {"sac": stable_baselines3.SAC, "ppo": stable_baselines3.PPO}[algorithm]
    words = {"ppo": {"n_steps": given.batch, "batch_size": min(100, given.batch)}, "sac": {}}[algorithm]
    file, state = given.out / f"{algorithm}-{seed:02}.json", given.environment / "state" / f"{algorithm}-{seed:02}"
    asked = {"task": task.name, "algorithm": algorithm, "seed": seed, "stacked": STACKED, "options": words}
    stored = json.loads(file.read_text()) if file.exists() else None
    if stored is not None and stored["asked"] != asked:
        raise SystemExit(f"{file} is of something else: {stored['asked']}, not {asked}. Choose another --out.")
    found: list[dict[str, Any]] = stored["measured"] if stored is not None else []
    if done(found, given):
        return
    plain = DummyVecEnv([stacked])
    plain.seed(seed)
    begun = found and (state / "model.zip").exists() and (state / "steps").read_text() == str(found[-1]["steps"])
    if begun:
        env = VecNormalize.load(str(state / "scale.pkl"), plain)
        model = kind.load(state / "model.zip", env=env, device="cpu")
        if algorithm == "sac":
            model.load_replay_buffer(state / "replay.pkl")
    else:
        found = []
        env = VecNormalize(plain, norm_obs=True, norm_reward=False)
        model = kind("MlpPolicy", env, seed=seed, device="cpu", **words)
    wall = found[-1]["wall_s"] if found else 0.0
    for goal in measured_at(given.steps):
        if goal <= model.num_timesteps or done(found, given):
            continue
        begin = time.monotonic()
        model.learn(goal - model.num_timesteps, reset_num_timesteps=not model.num_timesteps)
        wall += time.monotonic() - begin
        totals, share = execute(model, env, stacked(), task, given.executions)
        found.append(
            {
                "steps": model.num_timesteps,
                "seconds": model.num_timesteps * task.dt,
                "executed": float(totals.mean()),
                "executed_error": float(totals.std(ddof=1) / np.sqrt(len(totals))),
                "median": float(np.median(totals)),
                "success": share,
                "wall_s": wall,
            }
        )
        save(model, env, state, algorithm)
        versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        result = {"asked": asked, "executions": given.executions, "versions": versions, "measured": found}
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, (json.dumps(result, indent=1) + "\n").encode())
        last = found[-1]
        print(f"{algorithm} {seed}: {last['seconds']:.0f} s, {last['executed']:.1f} +- {last['executed_error']:.1f}")


def done(found: list[dict[str, Any]], given: argparse.Namespace) -> bool:
    """Whether all steps are done, or the last two measurements are good enough."""
    good = len(found) > 1 and all(each["executed"] <= given.until for each in found[-2:])
    return good or bool(found and found[-1]["steps"] >= given.steps)


def execute(model: Any, env: Any, plain: Any, task: Any, executions: int) -> tuple[np.ndarray, float]:
    """Total costs of executions, the first states' included, and the share that succeeds.

    First states and noise are the same for every policy. What a policy sees is scaled as in training.
    """
    from bayespilco.experiments.results import success

    costs = np.empty((executions, task.steps + 1))
    for number in range(executions):
        seen, truth = plain.reset(seed=10_000 + number)
        costs[number, 0] = truth["cost"]
        for t in range(task.steps):
            action, _ = model.predict(env.normalize_obs(seen), deterministic=True)
            seen, _, _, _, truth = plain.step(action)
            costs[number, t + 1] = truth["cost"]
    return costs.sum(axis=1), success(task, costs)


def save(model: Any, env: Any, state: Path, algorithm: str) -> None:
    """All that learning goes on from. The number of steps comes last: without it, the rest does not count."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "steps").unlink(missing_ok=True)
    model.save(state / "model.zip")
    env.save(str(state / "scale.pkl"))
    if algorithm == "sac":
        model.save_replay_buffer(state / "replay.pkl")
    (state / "steps").write_text(str(model.num_timesteps))


def replace(file: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    beside = file.with_suffix(".part")
    beside.write_bytes(content)
    beside.replace(file)


def curves(directory: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each algorithm and what was measured of one seed."""
    for file in sorted(directory.glob("*-[0-9][0-9].json")):
        stored = json.loads(file.read_text())
        yield stored["asked"]["algorithm"], stored["measured"]


def figure(out: Path, ours: list[Path]) -> None:
    """Executed cost over seconds of interaction: every seed, and the medians."""
    from bayespilco.algorithm import METHODS
    from bayespilco.report.style import QUIET, new_figure

    drawing, axes = new_figure(1, 1, 7.5, 4.4)
    ax = axes[0, 0]
    lines = {name: [each for key, each in curves(out) if key == name] for name in COLOURS}
    colours = dict(COLOURS)
    for file in ours:
        for curve in json.loads(file.read_text())["curves"]:
            lines.setdefault(curve["method"], []).append(curve["episodes"])
            colours[curve["method"]] = METHODS[curve["method"]].colour
    for name, runs in lines.items():
        for run in runs:
            ax.plot(
                [each["seconds"] for each in run], [each["executed"] for each in run], color=colours[name], alpha=0.3
            )
        at = sorted(set(itertools.chain(*([each["seconds"] for each in run] for run in runs))))
        # A run that ended early, good enough, stays as good as it was.
        medians = [np.median([_latest(run, seconds) for run in runs]) for seconds in at]
        if runs:
            label = f"{name.upper() if name in COLOURS else name}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
            ax.plot(at, medians, marker="o", markersize=4, color=colours[name], linewidth=2, label=label)
            lowest, seconds = min(zip(medians, at, strict=True))
            print(f"{name}: {len(runs)} seeds, lowest median {lowest:.1f} after {seconds:.0f} s")
    for limit in (26.8, 17.0):
        ax.axhline(limit, color=QUIET, linewidth=0.8, linestyle=":")
    ax.set(xscale="log", xlabel="seconds of interaction", ylabel="executed total cost", ylim=(0, None))
    ax.set_title("median over seeds, and each seed; dotted: the paper, and the limit", loc="left", fontsize=11)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.legend(frameon=False, fontsize=9)
    drawing.savefig(out / "peers.png")


def _latest(run: list[dict[str, Any]], seconds: float) -> float:
    """The last cost measured until then; before the first measurement, the first."""
    before = [each["executed"] for each in run if each["seconds"] <= seconds]
    return float(before[-1] if before else run[0]["executed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--task", default="cart-pole")
    train.add_argument("--algorithms", default="sac,ppo")
    train.add_argument("--seeds", type=int, default=1)
    train.add_argument("--first-seed", type=int, default=0)
    train.add_argument("--steps", type=int, default=DOUBLING[-1], help="at most; 50,000, in whole batches")
    train.add_argument("--until", type=float, default=18.5, help="good enough, twice in a row")
    train.add_argument("--executions", type=int, default=EXECUTIONS)
    train.add_argument("--batch", type=int, default=BATCH, help="steps of one batch of PPO")
    train.add_argument("--environment", type=Path, default=ROOT / "build" / "peers")
    train.add_argument("--torch", default="torch", help="what pip installs as PyTorch")
    train.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    draw = commands.add_parser("figure")
    draw.add_argument("--out", type=Path, required=True)
    draw.add_argument("--ours", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    if given.command == "figure":
        figure(given.out, given.ours)
    elif given.inside:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for algorithm in given.algorithms.split(","):
                learn(algorithm, seed, given)
    else:
        python = make_environment(given.environment, given.torch)
        sys.exit(subprocess.run([str(python), __file__, *sys.argv[1:], "--inside"]).returncode)


if __name__ == "__main__":
    main()

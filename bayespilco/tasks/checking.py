"""A task is checked before it is used: mistakes in a plant's equation become a sentence with the remedy.

Without this, JAX's own errors come minutes later, from deep inside a compiled loop, and speak of tracers. So the plant
is traced once, with nothing but a state and an action, and computed once, where episodes start.
"""

import traceback

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco.core.precision import float64
from bayespilco.model.episode import Episode
from bayespilco.tasks.task import RealPlant, Task


@float64
def check_plant(task: Task) -> None:
    """Refuse a simulated plant that cannot be traced, or whose result is not a next state."""
    plant = task.plant
    if isinstance(plant, RealPlant):
        return
    n, m = len(task.states), len(task.actions)
    x, u = task.initial.mean, jnp.zeros(m)
    try:
        found = jax.eval_shape(lambda x, u: jnp.asarray(plant(x, u)), x, u)
    except Exception as error:
        raise ValueError(f"The plant of task {task.name!r} {_explain(error)}") from error
    if found.shape != (n,):
        raise ValueError(
            f"The plant of task {task.name!r} must return one number per state, of shape ({n},); it returns shape "
            f"{found.shape}. Put the next states together with jnp.stack([...])."
        )
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(f"The plant of task {task.name!r} must return real numbers; it returns {found.dtype}.")
    following = np.asarray(plant(x, u))
    if not np.isfinite(following).all():
        raise ValueError(
            f"The plant of task {task.name!r} gives {_odd(task, following)} after one step from the mean of `initial`, "
            f"{np.asarray(x)}, with zero action. Look for a division by zero, or a root of a negative number."
        )
    # What a state will be depends on what it is, the more so the shorter the step. A rate of change does not so: the
    # derivative of a position is a velocity, and friction makes that of a velocity fall with it.
    remembered = np.diag(np.asarray(jax.jacfwd(plant)(x, u)))
    if not hasattr(plant, "dt") and (remembered <= 0).all():
        raise ValueError(
            f"The plant of task {task.name!r} looks like a derivative: no next state grows with the state itself. "
            f"If it is the right-hand side of x' = f(x, u), make a plant of it with hold(f, {task.dt:g}, substeps=10), "
            f"from bayespilco.tasks.task. If it does return the next state, say so: plant.dt = {task.dt:g}."
        )
    _check_mirror(task)


def _check_mirror(task: Task) -> None:
    """Refuse a declared mirror that the plant does not have: the model would be wrong everywhere."""
    if not task.mirror or isinstance(task.plant, RealPlant):
        return
    n, rng = len(task.states), np.random.default_rng(0)
    signs = np.array([-1 if part.name in task.mirror else 1 for part in (*task.states, *task.actions)])
    spread = np.sqrt(np.diag(np.asarray(task.initial.cov)))
    for _ in range(8):
        x = np.asarray(task.initial.mean) + (spread + 0.1) * rng.normal(size=n)
        u = rng.uniform(task.action_low, task.action_high)
        here = np.asarray(task.plant(jnp.asarray(x), jnp.asarray(u)))
        there = np.asarray(task.plant(jnp.asarray(signs[:n] * x), jnp.asarray(signs[n:] * u)))
        away = np.abs(there - signs[:n] * here)
        if not (away <= 1e-6 * (1 + np.abs(here - x))).all():
            k = int(np.argmax(np.where(np.isfinite(away), away, np.inf)))
            raise ValueError(
                f"The plant of task {task.name!r} is not its own mirror image: from the state {x.round(3)} with the "
                f"action {u.round(3)} and from their mirror image, {task.states[k]} becomes {here[k]:.4g} and "
                f"{there[k]:.4g}; they should {'be opposite' if signs[k] < 0 else 'agree'}. The mirror names all that "
                f"changes sign, {', '.join(task.mirror)}: add what is missing, or leave `mirror` out."
            )


def check_episode(task: Task, episode: Episode) -> None:
    """Refuse an episode of a simulation that has left the numbers, and name where it did."""
    sentence = describe_failure(task, episode)
    if sentence:
        raise ValueError(sentence)


def describe_failure(task: Task, episode: Episode) -> str:
    """Where a simulated episode, or one of a batch, first has NaN or infinity; an empty string if nowhere."""
    if isinstance(task.plant, RealPlant) or episode.states is None:
        return ""
    states = np.asarray(episode.states)
    odd = ~np.isfinite(states)
    if not odd.any():
        return ""
    *number, step, index = np.argwhere(odd)[np.argmin(np.argwhere(odd)[:, -2])]
    which = f" of execution {number[0]}" if number else ""
    before = states[(*number, step - 1)] if step else np.asarray(task.initial.mean)
    action = np.asarray(episode.actions)[(*number, step - 1)] if step else None
    return (
        f"The simulation of task {task.name!r} gave {states[(*number, step, index)]} for {task.states[index]} at step "
        f"{step}{which}. The state before was {before}, the action {action}. Either the plant's equation fails there, "
        "or it is integrated too coarsely: give `hold` more substeps."
    )


def _odd(task: Task, values: np.ndarray) -> str:
    index = int(np.argmin(np.isfinite(values)))
    return f"{values[index]} for {task.states[index]}"


REMEDIES: dict[type[Exception], str] = {
    jax.errors.TracerArrayConversionError: (
        "calls NumPy on a state or action. Use jax.numpy instead: jnp.sin(x), not np.sin(x)"
    ),
    jax.errors.TracerBoolConversionError: (
        "decides by a Python `if`, `and`, `or`, `min` or `max` on a state or action. Use jnp.where(condition, a, b), "
        "jnp.minimum or jnp.maximum instead"
    ),
    jax.errors.TracerIntegerConversionError: ("uses a state or action as an index. Use jnp.where or jnp.take instead"),
    jax.errors.ConcretizationTypeError: (
        "turns a state or action into a Python number, with float(), int() or the module math. Use jax.numpy instead: "
        "jnp.sin(x), not math.sin(x)"
    ),
}
"""What JAX's errors mean here; the special ones before the general one."""


def _explain(error: Exception) -> str:
    remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), None)
    if remedy is None:
        return f"fails{user_line(error)}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return f"{remedy}{user_line(error)}."


HERE = __file__.replace("\\", "/").rsplit("/", 2)[0]
LIBRARIES = ("site-packages", "dist-packages", HERE, "<frozen")


def user_line(error: BaseException, file: object = None) -> str:
    """The line of the user's own code that raised an error, in brackets; of one file, if it is given."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" (line {error.lineno} of {_name(error.filename or '')})"
    frames = traceback.extract_tb(error.__traceback__)
    if file is not None:
        mine = [frame for frame in frames if frame.filename == str(file)]
    else:
        mine = [frame for frame in frames if not any(part in frame.filename for part in LIBRARIES)]
    return f" (line {mine[-1].lineno} of {_name(mine[-1].filename)}: `{mine[-1].line}`)" if mine else ""


def _name(file: str) -> str:
    """The last part of a path."""
    return file.replace("\\", "/").rsplit("/", 1)[-1]

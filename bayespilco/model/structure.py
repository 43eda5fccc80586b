"""What is known of the dynamics before any data: linear rows around the GP.

    x' = L x + M u + B y + k_t + w,      y = f([x, u]) ~ GP,      w ~ N(0, Q)

The GP's outputs `y` are what has to be learned. Everything else is declared by the task, and exact:

- `free` (the paper's): every state is a GP output, `L = M = 0`, `B = I`.
- `second_order`: a position `p` with rate `v` moves by the trapezoid rule, `p' = p + dt/2 (v + v')`, and only `v'` is
  learned. Then the model of a velocity that no sensor sees is the model of *that* velocity.
- `with_action_delay`: past actions are rows of the state, a shift register, and the GP sees the oldest.
- `with_sensor_delay`: what a slow sensor will report is kept in rows that are filled from the state.
- `with_references`: targets to follow are rows of the state that move as the task says (`k_t`).

Rows that the controller knows exactly (past actions, references) are listed in `known`: a belief has no variance there.
The matrices are constants of the compiled code, so that zeros and identities cost nothing.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.precision import optional_float64

Rows = tuple[tuple[float, ...], ...]
"""A matrix as a static field: hashable, unlike an array."""


def as_rows(matrix: Any) -> Rows:
    return tuple(tuple(float(value) for value in row) for row in np.asarray(matrix, dtype=np.float64))


class Structure(eqx.Module):
    """The known part of the dynamics. Use `free`, `second_order` and the `with_` methods to make one."""

    transition: Rows = eqx.field(static=True, converter=as_rows)
    """L, of shape (state, state)."""
    action: Rows = eqx.field(static=True, converter=as_rows)
    """M, of shape (state, action)."""
    output: Rows = eqx.field(static=True, converter=as_rows)
    """B, of shape (state, output)."""
    outputs: tuple[int, ...] = eqx.field(static=True)
    """The state that each output of the GP is the next value of."""
    plant_states: int = eqx.field(static=True)
    """How many of the states, the first ones, are the plant's own. Only these have process noise."""
    known: tuple[int, ...] = eqx.field(static=True, default=())
    """States that the controller knows exactly: past actions and references."""
    acting: tuple[int, ...] = eqx.field(static=True, default=())
    """Where in `[x, u]` the actions are that the plant feels now."""
    drift: Float[Array, "steps state"] | None = eqx.field(converter=optional_float64, default=None)
    """k_t: how references move, step by step; None if they do not. After its last row nothing moves."""

    def __check_init__(self) -> None:
        n = len(self.transition)
        shapes = {
            "transition": (self.L.shape, (n, n)),
            "action": (self.M.shape[:1], (n,)),
            "output": (self.B.shape, (n, len(self.outputs))),
        }
        for name, (given, wanted) in shapes.items():
            if given != wanted:
                raise ValueError(f"{name} of a Structure of {n} states must have shape {wanted}; given {given}.")
        if self.drift is not None and self.drift.shape[1:] != (n,):
            raise ValueError(f"drift of a Structure must have one column per state ({n}); given {self.drift.shape}.")

    @property
    def L(self) -> np.ndarray:
        return np.array(self.transition)

    @property
    def M(self) -> np.ndarray:
        return np.array(self.action).reshape(len(self.transition), -1)

    @property
    def B(self) -> np.ndarray:
        return np.array(self.output).reshape(len(self.transition), -1)

    @property
    def states(self) -> int:
        """All rows: the plant's states and what was added to them."""
        return len(self.transition)

    @property
    def actions(self) -> int:
        return int(self.M.shape[1])

    @property
    def is_free(self) -> bool:
        """Whether nothing is known: `L = M = 0` and `B = I`."""
        n = self.states
        return not self.L.any() and not self.M.any() and self.B.shape == (n, n) and bool((np.eye(n) == self.B).all())

    def drift_at(self, t: Array | int) -> Float[Array, " state"] | float:
        """`k_t`."""
        if self.drift is None:
            return 0.0
        last = self.drift.shape[0] - 1
        return jnp.where(t <= last, self.drift[jnp.minimum(t, last)], 0.0)

    def with_action_delay(self, steps: int) -> "Structure":
        """The plant feels an action `steps` sampling periods late: past actions become rows, the newest first.

        With 0 steps nothing changes. The GP then sees the oldest of them instead of the newest action.
        """
        if steps == 0:
            return self
        m, n = self.actions, self.states
        grown = self._grown(m * steps)
        L, M = grown.L, grown.M
        M[n : n + m] = np.eye(m)
        for k in range(1, steps):
            L[n + k * m : n + (k + 1) * m, n + (k - 1) * m : n + k * m] = np.eye(m)
        added = tuple(range(n, n + m * steps))
        return grown._replace(transition=L, action=M, known=self.known + added, acting=added[-m:])

    def with_last_action(self) -> "Structure":
        """The last action as rows of the state, for costs of action changes; the plant feels no delay."""
        n, m = self.states, self.actions
        grown = self._grown(m)
        M = grown.M
        M[n:] = np.eye(m)
        # The actions of `[x, u]` have moved behind the new rows.
        return grown._replace(action=M, known=self.known + tuple(range(n, n + m)))

    def with_sensor_delay(self, rows: np.ndarray, steps: int) -> "Structure":
        """Keep what linear combinations `rows` of the state were 1 to `steps` steps ago, the newest first."""
        n, count = self.states, len(rows)
        grown = self._grown(count * steps)
        L = grown.L
        L[n : n + count, : rows.shape[1]] = rows
        for k in range(1, steps):
            L[n + k * count : n + (k + 1) * count, n + (k - 1) * count : n + k * count] = np.eye(count)
        return grown._replace(transition=L)

    def with_references(self, count: int, drift: np.ndarray | None = None) -> "Structure":
        """Targets to follow as rows of the state, constant but for `drift`, of shape (steps, count)."""
        n = self.states
        grown = self._grown(count)
        L = grown.L
        L[n:, n:] = np.eye(count)
        moved = None if drift is None else np.pad(drift, ((0, 0), (n, 0)))
        return grown._replace(transition=L, known=self.known + tuple(range(n, n + count)), drift=moved)

    def _grown(self, count: int) -> "Structure":
        """With rows added that are zero so far. Indices into `[x, u]` that meant an action are moved."""
        n = self.states
        return self._replace(
            transition=np.pad(self.L, ((0, count), (0, count))),
            action=np.pad(self.M, ((0, count), (0, 0))),
            output=np.pad(self.B, ((0, count), (0, 0))),
            acting=tuple(i if i < n else i + count for i in self.acting),
            drift=None if self.drift is None else np.pad(np.asarray(self.drift), ((0, 0), (0, count))),
        )

    def _replace(self, **changes: object) -> "Structure":
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Structure(**(fields | changes))


def free(states: int, actions: int) -> Structure:
    """Nothing is known: the GP has one output per state (the paper's model)."""
    return Structure(
        as_rows(np.zeros((states, states))),
        as_rows(np.zeros((states, actions))),
        as_rows(np.eye(states)),
        tuple(range(states)),
        states,
        acting=tuple(range(states, states + actions)),
    )


def second_order(states: int, actions: int, rates: Sequence[tuple[int, int]], dt: float) -> Structure:
    """Positions follow their rates: `p' = p + dt/2 v + dt/2 v'`, exact for constant acceleration within a step.

    Args:
        rates: Pairs of a position's index and its rate's.
    """
    outputs = tuple(i for i in range(states) if i not in {position for position, _ in rates})
    L, B = np.zeros((states, states)), np.zeros((states, len(outputs)))
    for place, state in enumerate(outputs):
        B[state, place] = 1.0
    for position, rate in rates:
        L[position, position], L[position, rate] = 1.0, dt / 2
        B[position, outputs.index(rate)] = dt / 2
    acting = tuple(range(states, states + actions))
    return Structure(as_rows(L), as_rows(np.zeros((states, actions))), as_rows(B), outputs, states, acting=acting)

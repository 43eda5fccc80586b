"""What is known of the dynamics before any data: linear rows around the GP.

    x' = L x + M u + B y + k_t + w,      y = f([x, u]) ~ GP,      w ~ N(0, Q)

The GP's outputs `y` are what has to be learned. Everything else is declared by the task, and exact:

- `free` (the paper's): every state is a GP output, `L = M = 0`, `B = I`.
- `second_order`: a position `p` moves by the integral of its rate `v`, and only `v'` is learned. Then the model of a
  velocity that no sensor sees is the model of *that* velocity.
- `with_action_delay`: past actions are rows of the state, a shift register, and the GP sees the oldest.
- `with_sensor_delay`: what a slow sensor will report is kept in rows that are filled from the state.
- `with_references`: targets to follow are rows of the state that move as the task says (`k_t`).
- `with_mirror`: some states and actions change sign in a mirror, and the plant behaves like its mirror image. So the
  GP's functions are odd or even, and every transition teaches two.

Rows that the controller knows exactly (past actions, references) are listed in `known`: a belief has no variance there.
The matrices are constants of the compiled code, so that zeros and identities cost nothing.

The integral is taken by the trapezoid rule and its first correction (Euler and Maclaurin's), where `a` is the
acceleration at the beginning of the step and `a'` that at its end, with the action held:

    p' = p + dt/2 (v + v') - dt^2/12 (a' - a)

The trapezoid alone is exact for constant acceleration. On the swinging cart-pole it leaves 0.0045 rad a step, which the
model would have to take for noise; corrected, 0.0009. The acceleration needs no other model: it is `(y - v) / dt`, and
it changes in a step by its slope times what the state moves, `x' - x = D`. With the slope `G` of `y` at `[x, u]`,

    dt (a' - a) = G' D - (v' - v),      so that      x' = L x + M u + B y + H (E - G') D + k_t + w

where `E` picks the rates, and `H` is `dt/12` for each position and its rate. `D` is linear in `x`, `u` and `y`, so the
correction is a change of the known matrices (`around`). Distributions use their expected slope.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.features import AngleFeatures
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
    correction: Rows = eqx.field(static=True, converter=as_rows, default=())
    """H, of shape (state, output); none if positions have no correction."""
    mirror: tuple[int, ...] = eqx.field(static=True, default=())
    """1 or -1 for each of the plant's states and actions: what a mirror makes of them. None if there is no symmetry."""
    drift: Float[Array, "steps state"] | None = eqx.field(converter=optional_float64, default=None)
    """k_t: how references move, step by step; None if they do not. After its last row nothing moves."""

    def __check_init__(self) -> None:
        n = len(self.transition)
        shapes = {
            "transition": (self.L.shape, (n, n)),
            "action": (self.M.shape[:1], (n,)),
            "output": (self.B.shape, (n, len(self.outputs))),
            "correction": (self.H.shape, (n, len(self.outputs))),
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
    def H(self) -> np.ndarray:
        return np.array(self.correction).reshape(-1, len(self.outputs)) if self.correction else np.zeros_like(self.B)

    @property
    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """D without correction, as matrices of `[x, u]` and of `y`. What is held within a step does not move."""
        n, own = self.states, (np.arange(self.states) < self.plant_states)[:, None]
        of_both = np.concatenate([self.L - np.eye(n), self.M], axis=1)
        return np.where(own, of_both, 0.0), np.where(own, self.B, 0.0)

    def around(self, gain: Float[Array, "both output"]) -> tuple[Array, Array]:
        """`N = [L M]` and `B` where the GP has this slope: those that are declared, and what corrects them."""
        N, B = np.concatenate([self.L, self.M], axis=1), self.B
        if not self.correction:
            return jnp.asarray(N), jnp.asarray(B)
        E = np.eye(self.states)[list(self.outputs)]
        turned = self.H @ (E - gain[: self.states].T)
        of_both, of_output = self.moves
        return N + turned @ of_both, B + turned @ of_output

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

    def with_mirror(self, signs: Sequence[int]) -> "Structure":
        """The plant's mirror image behaves like the plant: `f(s x, s u) = s f(x, u)`."""
        return self._replace(mirror=tuple(int(sign) for sign in signs))

    def mirrored_inputs(self, features: AngleFeatures) -> np.ndarray | None:
        """What the mirror makes of each of the GP's inputs, 1 or -1; None without one. Cosines stay as they are."""
        if not self.mirror:
            return None
        of_actions = dict(zip(self.acting, self.mirror[self.plant_states :], strict=True))
        signs = dict(enumerate(self.mirror[: self.plant_states])) | of_actions
        turned = [sign for angle in features.angles for sign in (signs[angle], 1)]
        return np.array([signs[place] for place in features.keep] + turned)

    @property
    def mirrored_outputs(self) -> np.ndarray:
        """What the mirror makes of each of the GP's outputs: -1 for an odd function, 1 for an even one."""
        return np.array([self.mirror[state] for state in self.outputs])

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
            correction=np.pad(self.H, ((0, count), (0, 0))) if self.correction else (),
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
    """Positions follow their rates: see the top of this file.

    Args:
        rates: Pairs of a position's index and its rate's.
    """
    outputs = tuple(i for i in range(states) if i not in {position for position, _ in rates})
    L, B = np.zeros((states, states)), np.zeros((states, len(outputs)))
    H = np.zeros_like(B)
    for place, state in enumerate(outputs):
        B[state, place] = 1.0
    for position, rate in rates:
        L[position, position], L[position, rate] = 1.0, dt / 2
        B[position, outputs.index(rate)] = dt / 2
        H[position, outputs.index(rate)] = dt / 12
    acting = tuple(range(states, states + actions))
    M = as_rows(np.zeros((states, actions)))
    return Structure(as_rows(L), M, as_rows(B), outputs, states, acting=acting, correction=as_rows(H))

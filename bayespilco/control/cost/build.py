"""Costs in words: a distance, tracking, effort, smoothness, limits.

Everything is measured in widths, `(difference / width)^2`, so that terms of different units can be compared. Components
are named by their index in `a = [x, u]`: action `i` of a plant with `n` states is component `n + i`.
"""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Array

from bayespilco.control.cost.hinge import HingeCost
from bayespilco.control.cost.quadratic import QuadraticCost
from bayespilco.control.cost.saturating import SaturatingCost
from bayespilco.core.checks import check_integer
from bayespilco.core.features import AngleFeatures
from bayespilco.core.precision import as_float64

Kind = type[SaturatingCost] | type[QuadraticCost]
Number = float | int
Numbers = Sequence[Number] | np.ndarray | Array


def distance(
    components: Sequence[int],
    target: Numbers,
    width: Number | Numbers,
    angles: Collection[int] = (),
    kind: Kind = SaturatingCost,
) -> SaturatingCost | QuadraticCost:
    """How far components are from fixed values.

    Args:
        components: Which ones, by index.
        target: Where each should be.
        width: The distance of each (or of all) that counts as one: an angle's in rad, near the target.
        angles: Those of the components that are angles: 2 pi further is no distance.
        kind: `SaturatingCost` or `QuadraticCost`.
    """
    components = _indices(components)
    targets, widths = _per_component(components, target, "target"), _widths(components, width)
    turning, straight = _turning(components, angles)
    at = np.concatenate(
        [targets[straight], np.stack([np.sin(targets[turning]), np.cos(targets[turning])], axis=1).ravel()]
    )
    features = AngleFeatures(tuple(components[i] for i in turning), tuple(components[i] for i in straight))
    scale = np.concatenate([widths[straight], np.repeat(widths[turning], 2)])
    return kind(features, as_float64(at), as_float64(np.diag(scale**-2)))


def tracking(
    components: Sequence[int],
    references: Sequence[int],
    width: Number | Numbers,
    angles: Collection[int] = (),
    kind: Kind = SaturatingCost,
) -> SaturatingCost | QuadraticCost:
    """How far components are from others, which say where they should be: a moving target.

    Args:
        components: Which ones, by index.
        references: The component that each should follow: known rows of the state.
        width: The distance of each (or of all) that counts as one.
        angles: Those of the components that are angles; then their references are angles too.
        kind: `SaturatingCost` or `QuadraticCost`.
    """
    components, references = _indices(components), _indices(references)
    _same_number(components, references, "references")
    widths = _widths(components, width)
    turning, straight = _turning(components, angles)
    features = AngleFeatures(
        tuple(components[i] for i in turning) + tuple(references[i] for i in turning),
        tuple(components[i] for i in straight) + tuple(references[i] for i in straight),
    )
    # The features are [kept, their references, sines and cosines, those of their references].
    kept, trig = _differences(widths[straight]), _differences(np.repeat(widths[turning], 2))
    weight = np.block([[kept, np.zeros((len(kept), len(trig)))], [np.zeros((len(trig), len(kept))), trig]])
    return kind(features, as_float64(np.zeros(features.size)), as_float64(weight))


def effort(actions: Sequence[int], width: Number | Numbers, rest: Number | Numbers = 0.0) -> QuadraticCost:
    """What actions cost: `((u - rest) / width)^2`, summed.

    Args:
        actions: By their index in `[x, u]`.
        width: The size of each action (or of all) that costs 1.
        rest: The action that costs nothing.
    """
    actions = _indices(actions)
    at = np.broadcast_to(np.asarray(rest, dtype=float), (len(actions),))
    return _of_actions(AngleFeatures((), actions), at, np.diag(_widths(actions, width) ** -2))


def smoothness(actions: Sequence[int], before: Sequence[int], width: Number | Numbers) -> QuadraticCost:
    """What changes of actions cost: `((u - u_before) / width)^2`, summed. It asks for less chatter.

    Args:
        actions: By their index in `[x, u]`.
        before: The components of the state that hold each action of the step before.
        width: The change of each action (or of all) that costs 1.
    """
    actions, before = _indices(actions), _indices(before)
    _same_number(actions, before, "before")
    features = AngleFeatures((), actions + before)
    return _of_actions(features, np.zeros(features.size), _differences(_widths(actions, width)))


def limits(component: int, lower: Number = -np.inf, upper: Number = np.inf, width: Number = 1.0) -> HingeCost:
    """What leaving an interval costs: 1 at a distance of `width` outside of it, and in proportion."""
    slope = 1 / _widths([component], width)[0]
    return HingeCost(AngleFeatures((), _indices([component])), as_float64(slope), as_float64(lower), as_float64(upper))


def _of_actions(features: AngleFeatures, target: np.ndarray, weight: np.ndarray) -> QuadraticCost:
    """A quadratic cost that has no say in what is at the goal."""
    return QuadraticCost(features, as_float64(target), as_float64(weight), as_float64(np.inf))


def _differences(width: np.ndarray) -> np.ndarray:
    """The weight of `sum ((y_i - r_i) / width_i)^2` on `[y, r]`."""
    D = np.concatenate([np.diag(1 / width), -np.diag(1 / width)], axis=1)
    weight: np.ndarray = D.T @ D
    return weight


def _indices(components: Sequence[int]) -> tuple[int, ...]:
    return tuple(check_integer(i, "A component of [x, u]", 0) for i in components)


def _widths(components: Sequence[int], width: Number | Numbers) -> np.ndarray:
    values = np.asarray(width, dtype=float)
    values = _per_component(components, np.full(len(components), values) if values.ndim == 0 else values, "width")
    if not (values > 0).all():
        raise ValueError(f"A width must be positive; given {values.tolist()}.")
    return values


def _per_component(components: Sequence[int], values: Numbers, name: str) -> np.ndarray:
    _same_number(components, values, name)
    return np.asarray(values, dtype=float)


def _same_number(components: Sequence[int], others: Numbers, name: str) -> None:
    if np.shape(others) != (len(components),):
        given = np.asarray(others).tolist()
        raise ValueError(f"There must be one entry of {name} for each of the components {components}; given {given}.")


def _turning(components: Sequence[int], angles: Collection[int]) -> tuple[list[int], list[int]]:
    """The positions in `components` of those that are angles, and of those that are not."""
    if strangers := set(angles) - set(components):
        raise ValueError(f"angles must be among the components {list(components)}; given {sorted(strangers)} besides.")
    positions = range(len(components))
    return [i for i in positions if components[i] in angles], [i for i in positions if components[i] not in angles]

"""Recorded trials seen as a regression problem: which inputs, which targets, and where to put pseudo-inputs."""

import numpy as np

from bayespilco.core.features import AngleFeatures


def input_masks(features: AngleFeatures) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which GP inputs the kernel sees (all but raw angles), and which the linear mean (all but sines and cosines)."""
    kept, trig = len(features.keep), 2 * len(features.angles)
    kernel = tuple(index not in features.angles for index in features.keep) + (True,) * trig
    return kernel, (True,) * kept + (False,) * trig


def spread_out(points: np.ndarray, count: int, *, sweeps: int = 20) -> np.ndarray:
    """`count` centres that cover the points (k-means, the same every time); all the points if there are no more.

    Starting from points that lie farthest from those already chosen, then moving each centre to the mean of the points
    nearest to it: the first covers what was visited rarely, the second averages the sensor noise out.
    """
    if len(points) <= count:
        return points.copy()
    scale = points.std(axis=0)
    scaled = (points - points.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    chosen = [int(np.argmin(np.sum(scaled**2, axis=1)))]
    distance = np.sum((scaled - scaled[chosen[0]]) ** 2, axis=1)
    for _ in range(count - 1):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum((scaled - scaled[chosen[-1]]) ** 2, axis=1))
    centres = scaled[chosen]
    nearest = np.zeros(len(points), dtype=int)
    for _ in range(sweeps):
        # |x - c|^2 without its |x|^2, which is the same for every centre.
        nearest = np.argmin(np.sum(centres**2, axis=1) - 2 * scaled @ centres.T, axis=1)
        members = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, column, minlength=count) for column in scaled.T], axis=1)
        centres = np.where(members[:, None] > 0, sums / np.maximum(members, 1)[:, None], centres)
    spread: np.ndarray = centres * np.where(scale > 0, scale, 1.0) + points.mean(axis=0)
    return spread

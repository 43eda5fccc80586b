"""What a step of a controller in C costs at most: memory, and operations."""

from dataclasses import dataclass

from bayespilco.deploy.controller import Controller


@dataclass(frozen=True)
class Cost:
    """At most, for one step. Every step costs nearly the same: no loop depends on the numbers."""

    constants: int
    """Numbers that are stored."""
    exponentials: int
    """Calls of `exp` and `expm1`, which take most of the time."""
    multiplications: int
    """Each with an addition, in thousands of which the last digits do not count."""
    others: int
    """Calls of `sin`, `cos`, `sqrt` and `log`."""


def cost(controller: Controller) -> Cost:
    """Counted from the loops of `filter.c`, `raw.c` and `common.c`."""
    d, a = controller.description, controller.arrays
    n, p, m = len(d.states), len(d.sensors), len(d.actions)
    centroids, features = a["policy_inputs"].shape
    policy_trig = 2 * len(d.policy_angles)
    exponentials = m * centroids + policy_trig
    multiplications = m * (centroids * (2 * features + 1) + features) + n * (n + m)
    others = policy_trig + 2 * m
    if "policy_scale" in a:
        exponentials, multiplications, others = exponentials + m, multiplications + 2 * m * n + m, others + 2 * n
    constants = sum(array.size for array in a.values())
    if controller.filters:
        (points, inputs), outputs = a["inputs"].shape, len(a["signal_variance"])
        trig, pairs, joint = 2 * len(d.model_angles), outputs * (outputs + 1) // 2, n + m
        products = outputs * points * (points + 1) // 2 + (pairs - outputs) * points**2
        exponentials += outputs * points + products + trig + 8 * trig * (trig + 1) // 2
        others += 2 * trig + trig * (trig + 1) + p * 5 + pairs * (inputs * (2 * inputs + 4)) + p
        others += outputs * (3 * inputs * inputs + 2 * inputs)
        uncertain = 1 if a["cross_cov"].any() or a["linear_cov"].any() else 0
        multiplications += p * n * n * 3 + p * p * n + p**3 + 3 * n**3 + 3 * p * n * n + p * n  # update
        multiplications += 8 * p * n if "sensor_growth" in a else 0
        multiplications += outputs * points * (inputs**2 + 3 * inputs + uncertain * (inputs**2 + inputs + 1))
        multiplications += pairs * points * (6 * inputs**2 + 5 * inputs) + products * (inputs + 4)
        multiplications += outputs * 6 * points * (points + 3) // 2  # products with nearly twice the digits
        multiplications += (2 * outputs + 5 * pairs) * 2 * inputs**3 + pairs * 6 * inputs**2
        multiplications += n * (n * (outputs + joint + outputs) + joint)  # correction of the known rows
        multiplications += outputs * joint * inputs + n * n * (joint + 2 * outputs + 2 * outputs**2)
        constants -= outputs * points * (points - 1) // 2  # of symmetric matrices one half is stored
    return Cost(constants, exponentials, multiplications, others)

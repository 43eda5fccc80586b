"""How to learn: every setting once, with its default, its limits and its help.

The command's options, the arguments of `bayespilco.learn`, and the entries of a run's `config.toml` are made from
`Settings`. Nothing here needs JAX, so that the command can show its help at once.
"""

import dataclasses
from numbers import Real
from typing import Any

from bayespilco.core.checks import LARGEST_SEED, check_integer
from bayespilco.core.registry import Registry

METHODS: Registry[Any] = Registry("method")
TRAININGS: Registry[Any] = Registry("training")
"""The tables that names are looked up in. `bayespilco.algorithm` fills them."""
OBJECTIVES: Registry[Any] = Registry("objective")
"""What policy search may minimise. `bayespilco.control.objective` fills it."""
STRUCTURES: Registry[str] = Registry("structure")
"""What may be known of the dynamics beforehand."""
STRUCTURES.add("free", "free", "Nothing: every state is learned (the paper's).")
STRUCTURES.add("second-order", "second-order", "Positions follow their rates: the rates alone are learned.")
STRUCTURES.add("auto", "auto", "second-order if the task declares rates, else free; a task may say otherwise.")

SELECTIONS: Registry[str] = Registry("selection")
"""How the best of the policies that a search finds is selected."""
SELECTIONS.add("samples", "samples", "By the mean cost on plants drawn from the model.")
SELECTIONS.add("index", "index", "By the same, less what may still be learned about it in the episodes left.")
SELECTIONS.add("prediction", "prediction", "By the predicted cost, which they were optimised on.")

EXPLORATIONS: Registry[str] = Registry("exploration")
"""What a policy is optimised on as long as the model knows of no way to the goal."""
EXPLORATIONS.add("none", "none", "On the model, with all that it does not know.")
EXPLORATIONS.add("thompson", "thompson", "On one plant drawn from the model (Thompson sampling).")
EXPLORATIONS.add("mean-function", "mean-function", "On the model's mean function, as if it were the plant.")

EXECUTIONS = 100
"""How often the command executes the final policy."""
LARGEST_COUNT = 1_000_000
"""Nobody means more episodes, points or evaluations than this."""


SEES: Registry[str] = Registry("way to see a belief")
"""What of the belief the policy sees."""
SEES.add("mean", "mean", "Its mean, as in the paper.")
SEES.add("belief", "belief", "Its mean and its covariance. Only for tasks with bursts of lost samples.")


def setting(
    default: Any,
    help: str,
    *,
    table: Registry[Any] | None = None,
    lowest: float | int = 1,
    highest: float | int = LARGEST_COUNT,
    no: str | None = None,
    before: Any = None,
) -> Any:
    """A field of `Settings`, with everything that is known of it.

    Args:
        default: Its value if nothing else is said.
        help: A sentence, shown by the command and by `help(learn)`.
        table: Where a name has to be found.
        lowest: The least that a number may be.
        highest: The most that a number may be.
        no: For a choice between yes and no, the command's word for no; by default no- and the name.
        before: What was done before there was this setting, if that is not the default.
    """
    before = default if before is None else before
    known = {"help": help, "table": table, "lowest": lowest, "highest": highest, "no": no, "before": before}
    return dataclasses.field(default=default, metadata=known)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to learn: together with the task, all that the result depends on."""

    method: str = setting("bayes-filter", "How to predict and execute; see `bayespilco methods`.", table=METHODS)
    episodes: int = setting(11, "Episodes in all, the first with random actions.")
    seed: int = setting(0, "The same seed gives the same run.", lowest=0, highest=LARGEST_SEED)
    training: str = setting(
        "evidence", "How to train the dynamics: evidence, or direct (the paper's).", table=TRAININGS
    )
    points: int = setting(50, "Inducing points of the dynamics model.")
    evaluations: int = setting(150, "Budget of one policy search, in values and gradients.")
    in_parts: bool = setting(
        True,
        "Whether later policy searches predict from parts of the first state's distribution, or from one.",
        no="whole",
    )
    objective: str = setting("expected-cost", "What policy search minimises.", table=OBJECTIVES)
    kappa: float = setting(
        1.0,
        "Standard deviations that the objective confidence-bound subtracts; below 0: adds.",
        lowest=-100,
        highest=100,
    )
    selection: str = setting(
        "samples",
        "What selects the best policy found: samples of the model, an index of them that explores, or prediction.",
        table=SELECTIONS,
        before="prediction",
    )
    exploration: str = setting(
        "none",
        "What to optimise on while the predicted cost is hopeless: none, thompson (a drawn plant), or mean-function.",
        table=EXPLORATIONS,
    )
    recover: bool = setting(
        False,
        "Whether the last policy is refined for the task's further starts as well, such as after a push.",
    )
    limit_probability: float = setting(
        0.0, "How likely a run may be to exceed the task's limits, in policy search; 0: any.", lowest=0, highest=1
    )
    structure: str = setting(
        "auto", "What is known of the dynamics: free, second-order, or auto.", table=STRUCTURES, before="free"
    )
    symmetry: bool = setting(
        True,
        "Whether the model knows the mirror of the task, if the task declares one.",
        before=False,
    )
    sees: str = setting(
        "mean", "What of the belief the policy sees: its mean, or the whole belief (with bursts only).", table=SEES
    )

    def __post_init__(self) -> None:
        _check(self)


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """When a trial is a GO: what is asked of the policy that is about to be executed, and of the model behind it.

    Nothing that is learned depends on them.
    """

    stop_unless_go: bool = setting(
        False, "Whether learning stops before a trial whose certificate is NO GO.", no="whatever-happens"
    )
    least_success: float = setting(
        0.9, "The least probability of success: its lower bound must be above.", lowest=0, highest=1
    )
    most_exceeding: float = setting(
        0.05, "The most probable that a limit may be exceeded in a run: an upper bound.", lowest=0, highest=1
    )
    confidence: float = setting(0.95, "Of these bounds.", lowest=0.5, highest=0.9999)
    level: float = setting(
        0.01, "How unusual the newest episode must be to contradict the model before it.", lowest=0, highest=1
    )
    least_promises: int = setting(2, "Promises that have to be tested before the next one counts.", lowest=0)
    most_missed: float = setting(
        2.0, "How much larger than promised the misses of earlier promises may be.", lowest=0, highest=1e6
    )

    def __post_init__(self) -> None:
        _check(self)


def _check(given: Any) -> None:
    """Refuse values outside of what the fields of a dataclass allow, and give the others their type."""
    for field in dataclasses.fields(given):
        value, known = getattr(given, field.name), field.metadata
        if known["table"] is not None:
            known["table"][value]  # an unknown name is refused with the names there are
        elif field.type is bool:
            if value not in (True, False):
                raise ValueError(f"{field.name} must be True or False; given {value!r}.")
            object.__setattr__(given, field.name, bool(value))
        elif field.type is int:
            checked = check_integer(value, field.name, known["lowest"], known["highest"])
            object.__setattr__(given, field.name, checked)
        elif field.type is float:
            lowest, highest = known["lowest"], known["highest"]
            if isinstance(value, bool) or not isinstance(value, Real) or not lowest <= float(value) <= highest:
                raise ValueError(f"{field.name} must be a number from {lowest:g} to {highest:g}; given {value!r}.")
            object.__setattr__(given, field.name, float(value))


def before() -> dict[str, Any]:
    """What each setting was before there was such a setting: what files mean that do not mention it."""
    return {field.name: field.metadata["before"] for field in dataclasses.fields(Settings)}


def describe(kind: type[Any] = Settings, indent: str = "") -> str:
    """The settings as lines of a docstring."""
    return "\n".join(f"{indent}{field.name}: {field.metadata['help']}" for field in dataclasses.fields(kind))


for _kind in (Settings, Thresholds):
    _kind.__doc__ = f"{_kind.__doc__}\n\n    Attributes:\n{describe(_kind, '        ')}\n    "

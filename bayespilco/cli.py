"""The command line: `bayespilco learn cart-pole`."""

import dataclasses
import functools
import inspect
import json
import operator
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from bayespilco import interrupts, startup
from bayespilco.interrupts import EXIT_INTERRUPTED
from bayespilco.settings import EXECUTIONS, Settings, Thresholds
from bayespilco.version import VERSION

if TYPE_CHECKING:
    from bayespilco.console import JobsDisplay
    from bayespilco.experiments.jobs import Place
    from bayespilco.runs import Run, RunDirectory
    from bayespilco.tasks import Bursts
    from bayespilco.trust.sensors import NewSensor

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)

EXIT_FAILED, EXIT_USAGE, EXIT_NO_GO = 1, 2, 3

TensorBoardOption = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard's files too (extra `tensorboard`).")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Processes to search policies with; the result is the same.", show_default="one per core"),
]
SensorsOption = Annotated[
    str | None,
    typer.Option(help='Only these of the task\'s sensors, by name: "cart position,pole angle".', show_default="all"),
]
DelayOption = Annotated[
    int | None, typer.Option(min=0, help="How many steps late the plant feels an action.", show_default="the task's")
]
DropoutOption = Annotated[
    float | None,
    typer.Option(help="The probability that a sample is lost, of each sensor on its own.", show_default="the task's"),
]
BurstsOption = Annotated[
    str | None,
    typer.Option(
        metavar="APART,LASTING",
        help="Bursts in which all samples are lost: the mean seconds between them, and of one (2,0.5).",
        show_default="the task's",
    ),
]
NoiseOption = Annotated[float | None, typer.Option(help="How many times the task's sensor noise.", show_default="1")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="STATE=LOW:HIGH",
        help='What a state must not exceed: "cart position=-0.5:0.5". May be repeated.',
        show_default="the task's",
    ),
]
NoCacheOption = Annotated[
    bool,
    typer.Option("--no-cache", envvar=startup.NO_CACHE, help="Do not keep compiled code for the next run."),
]


LiveOption = Annotated[
    bool, typer.Option("--live", help="Serve the report to a browser on this machine while the run is learned.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Say what happens in JSON, one object per line.")]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="FILE:NAME",
        help="A task in a file of your own, file.py:name. A run does not keep the code of its plant.",
        show_default=False,
    ),
]


Command = TypeVar("Command", bound=Callable[..., Any])


def with_settings(*kinds: type[Any], without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Give a command an option for each setting of some kinds, in place of its `**settings`.

    An option that is left out is None: its value is that of the configuration file, or else the default.
    """

    def change(function: Command) -> Command:
        first, *rest = inspect.signature(function).parameters.values()
        fields = [field for kind in kinds for field in dataclasses.fields(kind)]
        options = [_option(field) for field in fields if field.name not in without]
        changed = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in rest[:-1]]
        function.__signature__ = inspect.Signature([first, *options, *changed])  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in (first, *options, *changed)}
        return function

    return change


def _option(field: "dataclasses.Field[Any]") -> inspect.Parameter:
    flag, no, default = field.name.replace("_", "-"), field.metadata["no"], str(field.default)
    names = [f"--{flag}"]
    if field.type is bool:
        no = no or f"no-{flag}"
        names, default = [f"--{flag}/--{no}"], flag if field.default else no
    option = typer.Option(*names, help=field.metadata["help"], show_default=default)
    kind: Any = field.type
    annotated = operator.getitem(Annotated, (kind | None, option))  # in brackets, checkers would take it for a type
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotated)


def main(arguments: list[str] | None = None) -> None:
    """Run the command. Whatever the user can mend is said in one sentence on standard error, with exit code 2."""
    startup.single_thread()
    startup.collect_rarely()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: print(f"bayespilco: {message}", file=sys.stderr)
            code = app(arguments, prog_name="bayespilco", standalone_mode=False)
    except typer.TyperException as error:
        code = _complain(error.format_message())
    except (ValueError, OSError) as error:
        code = _complain(str(error))
    except typer.Abort:
        code = EXIT_INTERRUPTED
    interrupts.finish()
    sys.exit(code)


def _complain(sentence: str) -> int:
    if sentence:  # a command without arguments has shown its help already
        print(f"bayespilco: {sentence}", file=sys.stderr)
    return EXIT_USAGE


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"bayespilco {VERSION}")
        raise typer.Exit
    return wanted


@app.callback(epilog="Start with `bayespilco learn spring` (half a minute); then `bayespilco learn cart-pole` (10).")
def bayespilco(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learn to control a plant from seconds of noisy experience: PILCO with Bayesian filtering.

    A Gaussian process learns how the plant moves, a filter sees through the noise of its sensors, and a policy is
    improved on predictions that take both into account. Then it is tried, and learned from, again.
    """


@app.command(
    epilog="""**Examples**

- `bayespilco learn spring`: a first try that takes half a minute
- `bayespilco learn cart-pole --out runs/first`: the paper's task, the paper's method
- `bayespilco learn cart-pole --method pilco --seed 3`: no filter, other data
- `bayespilco learn cart-pole --training direct`: the paper's own training of the dynamics
- `bayespilco learn double-pendulum --points 100`: two motors; a model with more inputs needs more points
- `bayespilco learn runs/first/config.toml --seed 4`: the same again with another seed
- `bayespilco learn pendulum --from-data log.csv`: from data that there are already (docs/howto/own-data.md)
- `bayespilco learn cart-pole --sensors "cart position,pole angle"`: without velocity sensors
- `bayespilco learn cart-pole --delay 1 --dropout 0.3`: actions a step late, and three samples of ten lost
- `bayespilco learn tanks.py:task`: a task of your own, in a file of your own (docs/howto/own-task.md)

**Tasks**: cart-pole, pendulum, double-pendulum, spring, tank, servo, light-dark, cart-pole-bursts (described by
`bayespilco tasks`)

**Methods**: bayes-filter, pilco, deisenroth, dallaire (described by `bayespilco methods`)

**The directory** gets config.toml, task.json, metrics.jsonl and one episode-NN.safetensors per episode while learning
goes on, and evaluation.json, costs.png, learning.png, states.png, poses.png, motion.gif and report.html at the end.
However learning was interrupted, `bayespilco resume` goes on from there."""
)
@with_settings(Settings, Thresholds)
def learn(
    task: Annotated[
        str,
        typer.Argument(help="What to learn: a task, one of your own (file.py:name), or the config.toml of a run."),
    ],
    executions: Annotated[
        int | None, typer.Option(help="How often to execute the final policy.", show_default=str(EXECUTIONS))
    ] = None,
    from_data: Annotated[
        Path | None, typer.Option(help="Start from logged episodes, a CSV file, not from random actions.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to save the run.", show_default="runs/TASK-METHOD-SEED")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in that directory.")] = False,
    own_task: TaskOption = None,
    sensors: SensorsOption = None,
    delay: DelayOption = None,
    dropout: DropoutOption = None,
    bursts: BurstsOption = None,
    noise: NoiseOption = None,
    limit: LimitOption = None,
    workers: WorkersOption = None,
    tensorboard: TensorBoardOption = False,
    live: LiveOption = False,
    as_json: JsonOption = False,
    no_cache: NoCacheOption = False,
    **settings: Any,
) -> None:
    """Learn a task, save the run, and draw predicted against executed costs."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import runs
    from bayespilco.core.checks import unknown_name
    from bayespilco.runs.directory import read_stored_task
    from bayespilco.runs.own_tasks import is_file
    from bayespilco.tasks import TASKS

    repeated = task.endswith(".toml")
    asked = runs.Config.read(Path(task), complete=False) if repeated else runs.Config(task)
    if repeated and not own_task and asked.task not in TASKS:
        unknown = unknown_name(asked.task, list(TASKS), "task")
        raise ValueError(f"{task}: {unknown} A task of your own is given as well, with --task file.py:name.")
    found = runs.find_task(own_task or (task if is_file(task) else asked.task))
    if repeated and own_task is None and (kept := read_stored_task(Path(task).parent)) is not None:
        found = found._replace(task=kept.task)  # the same again has the same sensors and delays
    names = None if sensors is None else [name.strip() for name in sensors.split(",")]
    found = found._replace(task=found.task.varied(names, delay, dropout, noise, _bursts(bursts)))
    if limit:
        found = found._replace(task=found.task.with_limits(_limits(limit)))
    if repeated and found.task.name != asked.task:
        raise ValueError(f"{task} is of the task {asked.task!r}; given {found.task.name!r}.")
    if from_data is None and repeated and (logged := Path(task).parent / runs.LOGGED).exists():
        from_data = logged  # the same again begins with the same data
    chosen, thresholds = _chosen(settings, asked.settings), _chosen(settings, asked.thresholds)
    path = out or Path("runs") / f"{found.task.name}-{chosen.method}-{chosen.seed}"
    _report(
        runs.learn,
        found,
        path,
        tensorboard,
        workers,
        live,
        as_json,
        out=path,
        force=force,
        from_data=from_data,
        executions=asked.executions if executions is None else executions,
        thresholds=thresholds,
        **dataclasses.asdict(chosen),
    )


def _bursts(given: str | None) -> "Bursts | None":
    if given is None:
        return None
    from bayespilco.tasks import Bursts

    try:
        apart, lasting = (float(each) for each in given.split(","))
    except ValueError:
        raise ValueError(
            f"--bursts must be two numbers of seconds, APART,LASTING, such as 2,0.5; given {given!r}."
        ) from None
    return Bursts(apart, lasting)


Chosen = TypeVar("Chosen", Settings, Thresholds)


def _chosen(given: dict[str, Any], asked: Chosen) -> Chosen:
    """What was asked for, with those of the options that were given."""
    names = [field.name for field in dataclasses.fields(asked)]
    return dataclasses.replace(asked, **{n: given[n] for n in names if given.get(n) is not None})


def _limits(given: list[str]) -> dict[str, tuple[float | None, float | None]]:
    """From `cart position=-0.5:0.5`, or `speed=:2`, to the limits of a task."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for each in given:
        name, _, ends = each.rpartition("=")
        low, colon, high = ends.partition(":")
        try:
            if not (name.strip() and colon):
                raise ValueError
            found[name.strip()] = (float(low) if low.strip() else None, float(high) if high.strip() else None)
        except ValueError:
            raise ValueError(f"--limit is STATE=LOW:HIGH, such as 'cart position=-0.5:0.5'; given {each!r}.") from None
    return found


@app.command(
    epilog="""**Examples**

- `bayespilco resume runs/first`: after Ctrl-C, a power cut or `kill -9`
- `bayespilco resume runs/first --episodes 20`: a run that needs more episodes than it was given
- `bayespilco resume runs/tanks --task tanks.py:task`: a task of your own, whose code a run does not keep"""
)
@with_settings(Thresholds)
def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a run, what was `--out`.")],
    task: TaskOption = None,
    episodes: Annotated[
        int | None, typer.Option(help="Episodes in all, if not as many as at first.", show_default="as at first")
    ] = None,
    workers: WorkersOption = None,
    tensorboard: TensorBoardOption = False,
    live: LiveOption = False,
    as_json: JsonOption = False,
    no_cache: NoCacheOption = False,
    **settings: Any,
) -> None:
    """Go on with an interrupted run, to the same result as if it had not been interrupted."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import runs

    thresholds = None
    if any(value is not None for value in settings.values()):
        thresholds = _chosen(settings, runs.Config.read(directory / "config.toml").thresholds)
    function = functools.partial(runs.resume, directory, thresholds=thresholds)
    _report(function, task, directory, tensorboard, workers, live, as_json, episodes=episodes)


def _report(
    function: Callable[..., "Run"],
    task: Any,
    path: Path,
    tensorboard: bool,
    workers: int | None,
    live: bool = False,
    as_json: bool = False,
    **named: Any,
) -> None:
    """Call `runs.learn` or `runs.resume`, execute and draw at the end, and say what came of it."""
    from bayespilco import report, runs
    from bayespilco.console import JsonLines, evaluation_sentence
    from bayespilco.report.live import LiveReport
    from bayespilco.runs.directory import own_events
    from bayespilco.runs.workers import available_cores

    console = Console(highlight=False, quiet=as_json)
    pictures: list[Path] | None = None
    tensorboard = tensorboard or (function is not runs.learn and bool(own_events(path)))
    callbacks: list[Any] = [runs.TensorBoard(path)] if tensorboard else []
    watching: list[Any] = []
    with ExitStack() as stack:
        server = stack.enter_context(LiveReport()) if live else None
        lines = JsonLines() if as_json else None
        for each in (server, lines):
            if each is not None:
                callbacks.append(each.on_run)
                watching.append(each.on_progress)
        if server is not None:
            console.print(f"Live report: {server.address}", soft_wrap=True)
        if server is not None and lines is not None:
            lines.say("live", address=server.address)

        def on_end(run: "Run", directory: "RunDirectory") -> None:
            nonlocal pictures
            with console.status("executing the final policy, and drawing"):
                pictures = report.conclude(run, directory)
                if server is not None:
                    server.on_end(run, runs.load_evaluation(path))

        try:
            run = function(
                task,
                callbacks=callbacks,
                on_progress=lambda progress: [each(progress) for each in watching],
                on_end=on_end,
                progress=not as_json,
                workers=workers or available_cores(),
                **named,
            )
        except runs.Interrupted as end:
            print(f"Interrupted. {end.sentence}", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if pictures is None and not runs.is_finished(path):
        sentence = runs.read_certificate(path)["sentence"]
        print(f"Stopped before the next trial. {sentence}", file=sys.stderr)
        print(f"To go on all the same: bayespilco resume {path} --whatever-happens", file=sys.stderr)
        raise typer.Exit(EXIT_NO_GO)
    executed = runs.load_evaluation(path)
    if lines is not None:
        lines.end(path, executed)
        return
    if pictures is None:
        print(f"Nothing to do: the run in {path} is finished, with {len(run.records)} episodes.")
        return
    assert executed is not None, "it was kept a moment ago"
    *drawn, page = pictures
    console.print(evaluation_sentence(run, executed))
    console.print(f"Pictures: {', '.join(map(str, drawn))}", soft_wrap=True, markup=False)
    console.print(f"Report: {page}. To play with the controller: bayespilco play {path}", soft_wrap=True, markup=False)


@app.command(
    epilog="""**Examples**

- `bayespilco reproduce --out study`: the paper's experiment, once
- `bayespilco reproduce --out study --seeds 10`: on ten data sets, with intervals; what is there already is kept
- `bayespilco reproduce --out study --seeds 100 --dask tcp://head:8786`: on a cluster that shares the directory

**The directory** gets index.html (a page with everything; results.md is the same), results.json (all numbers),
curves.csv (cost per step) and one seed-NN per data set. After an interruption the same command goes on."""
)
def reproduce(
    out: Annotated[Path, typer.Option(help="Where the study is, or is to be.")],
    seeds: Annotated[int, typer.Option(help="How many data sets.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    executions: Annotated[int, typer.Option(help="How often to execute each policy.")] = 100,
    samples: Annotated[int, typer.Option(help="Plants drawn from the model for the sampled prediction.")] = 200,
    ablations: Annotated[
        int, typer.Option(help="For how many of the seeds also the paper's update as printed, and its training.")
    ] = 1,
    task: Annotated[str, typer.Option(help="What to compare the methods on.")] = "cart-pole",
    episodes: Annotated[int, typer.Option(help="Episodes of the common data, the first with random actions.")] = 11,
    points: Annotated[int, typer.Option(help="Inducing points of the dynamics model.")] = 100,
    collecting: Annotated[int, typer.Option(help="Budget of a policy search while data are collected.")] = 150,
    collecting_points: Annotated[int, typer.Option(help="Inducing points while data are collected.")] = 50,
    evaluations: Annotated[int, typer.Option(help="Budget of a policy search of the comparison.")] = 150,
    in_parts: Annotated[int, typer.Option(help="Then, in each of three ways of predicting in parts.")] = 40,
    workers: Annotated[int | None, typer.Option(help="Processes at a time.", show_default="one per core")] = None,
    dask: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler whose workers share the directory.")
    ] = None,
) -> None:
    """Repeat the paper's comparison of the four methods, on one data set or on many."""
    from bayespilco.console import comparison_table
    from bayespilco.experiments.comparison import Study
    from bayespilco.experiments.reproduce import claim
    from bayespilco.experiments.reproduce import reproduce as compute

    for name, value, lowest in (("seeds", seeds, 1), ("first-seed", first_seed, 0), ("ablations", ablations, 0)):
        if value < lowest:
            raise ValueError(f"--{name} must be at least {lowest}; given {value}.")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1; given {workers}.")
    study = Study(task, episodes, points, collecting, collecting_points, evaluations, in_parts, executions, samples)
    claim(study, out)
    wanted = range(first_seed, first_seed + seeds)
    with _studying(out, workers, dask) as (place, display, console, failed):
        failed |= compute(
            study,
            out,
            wanted,
            place,
            ablations=ablations,
            command=_command(),
            on_status=display.on_status,
            on_seed=lambda seed, numbers: console.print(comparison_table(numbers)),
        )


@contextmanager
def _studying(
    out: Path, workers: int | None, dask: str | None
) -> Iterator[tuple["Place", "JobsDisplay", Console, dict[str, str]]]:
    """Where a study's jobs run and are shown. Put into the last what failed: it is said at the end."""
    from bayespilco.console import JobsDisplay
    from bayespilco.experiments.cluster import Cluster
    from bayespilco.experiments.jobs import Local

    console, failed = Console(highlight=False), dict[str, str]()
    finished = f"What is finished is in {out}; the same command goes on from there."
    try:
        with (
            interrupts.saying(lambda: finished),
            Cluster(dask, out) if dask else Local(workers) as place,
            JobsDisplay(console) as display,
        ):
            yield place, display, console, failed
    except KeyboardInterrupt:
        print(f"Interrupted. {finished}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if (out / "index.html").exists():
        console.print(f"Results: {out / 'results.json'}, {out / 'index.html'}", soft_wrap=True, markup=False)
    if failed:
        for name, error in failed.items():
            print(f"bayespilco: {name} failed: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED)


@app.command(
    "learning-curves",
    epilog="""**Examples**

- `bayespilco learning-curves --out curves --seeds 10`: how soon the cart-pole is learned, and how sure that is
- `bayespilco learning-curves --out curves --seeds 20`: ten more seeds; what is there already is kept
- `bayespilco learning-curves --out noisy --methods pilco,bayes-filter --noise 2 --seeds 3`: with twice the noise
- `bayespilco learning-curves --out mine --task tanks.py:task --thresholds 10,5`: a task of your own

**The directory** gets index.html (a page with everything; results.md is the same), results.json (all numbers, also of
runs that are not finished yet) and a run per seed and method. After an interruption the same command goes on, after
the last episode of each run. See docs/howto/learning-curves.md.""",
)
@with_settings(Settings, without=("method", "seed", "episodes"))
def learning_curves(
    out: Annotated[Path, typer.Option(help="Where the study is, or is to be.")],
    task: Annotated[str, typer.Option(help="What to learn: a task, or one of your own (file.py:name).")] = "cart-pole",
    methods: Annotated[str, typer.Option(help="Which methods, by name: pilco,bayes-filter.")] = "bayes-filter",
    seeds: Annotated[int, typer.Option(help="How many runs of each method.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The seed of the first.")] = 0,
    episodes: Annotated[int, typer.Option(help="Episodes of each run, the first with random actions.")] = 15,
    executions: Annotated[int, typer.Option(help="How often to execute each policy.")] = EXECUTIONS,
    samples: Annotated[int, typer.Option(help="Plants drawn from each model for the sampled prediction.")] = 100,
    thresholds: Annotated[
        str | None, typer.Option(help="Costs to be below: 26.8,22,20.", show_default="the task's")
    ] = None,
    sensors: SensorsOption = None,
    delay: DelayOption = None,
    dropout: DropoutOption = None,
    noise: NoiseOption = None,
    workers: Annotated[int | None, typer.Option(help="Processes at a time.", show_default="one per core")] = None,
    dask: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler whose workers share the directory.")
    ] = None,
    **settings: Any,
) -> None:
    """Measure how many seconds of interaction methods need, over many seeds: each learns from its own data."""
    from bayespilco.console import curve_line
    from bayespilco.experiments.curves import CurveStudy, claim
    from bayespilco.experiments.curves import learning_curves as compute

    for name, value, lowest in (("seeds", seeds, 1), ("first-seed", first_seed, 0), ("episodes", episodes, 1)):
        if value < lowest:
            raise ValueError(f"--{name} must be at least {lowest}; given {value}.")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1; given {workers}.")
    chosen = Settings(**{name: value for name, value in settings.items() if value is not None})
    named = _names(methods)
    study = CurveStudy(
        task=task,
        sensors=None if sensors is None else tuple(_names(sensors)),
        delay=delay,
        dropout=dropout,
        noise=1.0 if noise is None else noise,
        settings=chosen,
        executions=executions,
        samples=samples,
    )
    limits = None if thresholds is None else _numbers("thresholds", thresholds)
    claim(study, out, named)
    with _studying(out, workers, dask) as (place, display, console, failed):
        failed |= compute(
            study,
            out,
            range(first_seed, first_seed + seeds),
            methods=named,
            episodes=episodes,
            thresholds=limits,
            place=place,
            command=_command(),
            on_status=display.on_status,
            on_curve=lambda curve: console.print(curve_line(curve), soft_wrap=True),
        )


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",")]


def _numbers(option: str, given: str) -> list[float]:
    try:
        return sorted((float(each) for each in given.split(",")), reverse=True)
    except ValueError:
        raise ValueError(f"--{option} must be numbers with commas between them; given {given!r}.") from None


def _command() -> str:
    """This command as it was given."""
    return shlex.join(["bayespilco", *sys.argv[1:]])


@app.command(
    epilog="""**Examples**

- `bayespilco evaluate runs/first`: ten runs of five minutes; how often does it fall?
- `bayespilco evaluate runs/first --pushes 50`: and fifty pushes to the balanced pole, in both directions
- `bayespilco evaluate runs/tanks --task tanks.py:task --pushes 20 --push-state "lower level" --push-size 3`

**The directory** gets holding.json, with these numbers and more."""
)
def evaluate(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    minutes: Annotated[float, typer.Option(help="How long each run is.")] = 5.0,
    runs: Annotated[int, typer.Option(help="How many runs.")] = 10,
    pushes: Annotated[int, typer.Option(help="How many pushes to give to the plant when it is at the goal.")] = 0,
    push_state: Annotated[
        str | None, typer.Option(help="Which state to push, by name.", show_default="the task's last rate")
    ] = None,
    push_size: Annotated[
        float | None, typer.Option(help="By how much it jumps, in its own unit.", show_default="9 on the cart-pole")
    ] = None,
    within: Annotated[float, typer.Option(help="Seconds to be back at the goal after a push.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of first states and sensor noise.")] = 1,
    task: TaskOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """Run a learned controller for long on its simulated plant, and push it: does it hold, does it recover?"""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco.console import holding_table
    from bayespilco.experiments.holding import evaluate_holding, save
    from bayespilco.runs import Run

    console, learned = Console(highlight=False), Run.load(directory, task)
    with console.status("running the controller"):
        found = evaluate_holding(
            learned,
            minutes=minutes,
            runs=runs,
            pushes=pushes,
            push_state=push_state,
            push_size=push_size,
            within=within,
            seed=seed,
        )
    console.print(holding_table(found))
    print(f"Kept in {save(found, directory)}.")


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    episode: Annotated[
        int | None, typer.Option(min=0, help="Learned after which episode, counted from 0.", show_default="the last")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    single: Annotated[bool, typer.Option("--float", help="In C: numbers of type float, not double.")] = False,
    task: TaskOption = None,
) -> None:
    """Write the controller of a run as one file, which `bayespilco.deploy.controller` loads with NumPy alone.

    With a name that ends in `.c`: as C99, with a header beside it.
    """
    from bayespilco.deploy import export
    from bayespilco.deploy.controller import timing
    from bayespilco.runs import Run

    run = Run.load(directory, task)
    taken = run.controller if episode is None else run.controller_after(episode)
    if out.suffix == ".c":
        header = export.save_c(taken, out, single=single, force=force)
        print(f"{out}, {header}: {out.stat().st_size + header.stat().st_size} bytes of C99")
        return
    if single:
        raise ValueError(f"--float is for C: give --out a name that ends in .c; given {out}.")
    export.save(taken, out, force=force)
    print(f"{out}: {out.stat().st_size} bytes; {timing(taken, steps=200)}")


@app.command(
    "report",
    epilog="""**Example**

- `bayespilco report runs/first`: writes runs/first/report.html, also of a run that is not finished""",
)
def write_report(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="report.html, in the directory")
    ] = None,
    task: TaskOption = None,
) -> None:
    """Write the report of a run as one page: how it went, what was promised and kept, what the controller believed."""
    from bayespilco import report, runs
    from bayespilco.deploy.files import write
    from bayespilco.runs.directory import REPORT

    page = report.page(runs.Run.load(directory, task), runs.load_evaluation(directory)).encode()
    path = out or directory / REPORT
    write(path, page)
    print(f"{path}: {len(page) / 1e6:.2g} MB; open it in a browser.")


@app.command(
    epilog="""**Examples**

- `bayespilco figure runs/first --kind costs --format pdf`: writes runs/first/costs.pdf
- `bayespilco figure runs/first --kind learning --format svg --dark`: for a dark page"""
)
def figure(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    kind: Annotated[str, typer.Option(help="costs, learning, states or poses.")] = "costs",
    format: Annotated[str, typer.Option(help="png, pdf or svg.")] = "png",
    out: Annotated[Path | None, typer.Option(help="The file to write.", show_default="KIND.FORMAT there")] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Light on dark.")] = False,
    task: TaskOption = None,
) -> None:
    """Draw one figure of a run, for a paper or a page."""
    from bayespilco import report, runs

    executed = runs.load_evaluation(directory)
    if executed is None:
        raise ValueError(f"The final policy of {directory} was not executed yet: `bayespilco resume {directory}`.")
    if format not in report.FORMATS:
        raise ValueError(f"A figure can be written as {', '.join(report.FORMATS)}; given {format!r}.")
    drawn = report.figure(runs.Run.load(directory, task), executed, kind)
    path = out or directory / f"{kind}.{format}"
    report.save(report.darken(drawn) if dark else drawn, path)
    print(path)


@app.command(
    epilog="""**Examples**

- `bayespilco play runs/first`: writes runs/first/playground.html
- `bayespilco play runs/first --episode 4 --out early.html`: the controller as it was after five episodes
- `bayespilco play study`: the four methods of `bayespilco reproduce --out study`, side by side"""
)
def play(
    directory: Annotated[Path, typer.Argument(help="The directory of a run, or of a study made by `reproduce`.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="DIRECTORY/playground.html")
    ] = None,
    episode: Annotated[
        int | None, typer.Option(min=0, help="Learned after which episode, counted from 0.", show_default="the last")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Which data set of a study.", show_default="the first")
    ] = None,
    task: TaskOption = None,
) -> None:
    """Write a page in which the learned controller runs live on the simulated plant, to be pushed and disturbed."""
    from bayespilco.deploy.files import write
    from bayespilco.experiments.playing import is_study, of_study
    from bayespilco.report import playground
    from bayespilco.runs import Run
    from bayespilco.runs.directory import PLAYGROUND

    if is_study(directory):
        if episode is not None or task is not None:
            raise ValueError(f"{directory} is a study: --episode and --task are for runs.")
        page = of_study(directory, seed)
    else:
        if seed is not None:
            raise ValueError(f"{directory} is not a study: --seed is for studies.")
        page = playground.of_run(Run.load(directory, task), -1 if episode is None else episode)
    path = out or directory / PLAYGROUND
    write(path, page.encode())
    print(f"{path}: {len(page.encode()) / 1e6:.2g} MB; open it in a browser.")


@app.command(
    epilog="""**Examples**

- `bayespilco check runs/first`: may the policy that was learned be executed?
- `bayespilco check runs/first --limit "cart position=-0.5:0.5" --most-exceeding 0.01`: will it stay on the track?

The certificate is printed, and written to certificate.json in the directory. The exit code is 0 for GO and 3 for
NO GO."""
)
@with_settings(Thresholds, without=("stop_unless_go",))
def check(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    limit: LimitOption = None,
    task: TaskOption = None,
    no_cache: NoCacheOption = False,
    **settings: Any,
) -> None:
    """Say what the policy of a run will do, how sure that is, and whether its model deserves to be believed."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import runs
    from bayespilco.runs.directory import write_certificate

    run = runs.Run.load(directory, task)
    if limit:
        run = dataclasses.replace(run, task=run.task.with_limits(_limits(limit)))
    asked = _chosen(settings, runs.Config.read(directory / "config.toml").thresholds)
    console = Console(highlight=False)
    with console.status("simulating the policy on plants drawn from the model"):
        certificate = run.certificate(asked)
    for line in certificate.lines():
        console.print(line, markup=False)
    console.print(certificate.sentence, markup=False, style="bold")
    console.print(f"Written: {write_certificate(directory, certificate)}", soft_wrap=True, markup=False)
    if not certificate.go:
        raise typer.Exit(EXIT_NO_GO)


@app.command(
    epilog="""**Examples**

- `bayespilco sensors runs/first`: what half or twice the noise of each sensor would change
- `bayespilco sensors runs/first --add "cart velocity:0.1"`: what a sensor would be worth that there is not yet"""
)
def sensors(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE:NOISE",
            help='A sensor that does not exist yet: the state, and its noise (std): "cart velocity:0.1".',
            show_default=False,
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=2, help="Pairs of runs on sampled plants.")] = 300,
    reoptimise: Annotated[
        bool, typer.Option("--reoptimise", help="Improve the policy for each variant of the sensors first.")
    ] = False,
    task: TaskOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """Say what a better sensor would be worth: the change of the total cost, by paired runs on sampled plants."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco.algorithm import SPLIT_SHARE
    from bayespilco.console import sensors_table
    from bayespilco.runs import Run
    from bayespilco.trust.sensors import sensor_worths

    run = Run.load(directory, task)
    budget = max(run.settings.evaluations // SPLIT_SHARE, 1) if reoptimise else 0
    console = Console(highlight=False)
    with console.status("simulating the policy with other sensors on plants drawn from the model"):
        found = sensor_worths(
            run.task, run.settings, run.records, added=_new_sensors(add or []), runs=runs, reoptimise=budget
        )
    console.print(
        f"Total cost with the sensors as they are: {found.total:.2f} +- {found.error:.2f} ({found.runs} plants). "
        "Changes, by paired runs:"
    )
    console.print(sensors_table(found))
    console.print(found.sentence, markup=False, style="bold")


@app.command(
    epilog="""**Example**

- `bayespilco belief runs/first`: how far the belief's variance differs from run to run, and what that explains"""
)
def belief(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    episode: Annotated[
        int, typer.Option(help="The policy learned after this episode; 0 is the first, -1 the last.")
    ] = -1,
    runs: Annotated[int, typer.Option(min=2, help="How many runs, each on a plant drawn from the model.")] = 200,
    task: TaskOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """Say how random the belief's variance is, and how much of the gap between predicted and executed it explains."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco.console import spread_table
    from bayespilco.runs import Run
    from bayespilco.trust.spread import belief_spread

    run = Run.load(directory, task)
    console = Console(highlight=False)
    with console.status("simulating the policy on plants drawn from the model"):
        found = belief_spread(run.task, run.settings, run.record(episode), runs=runs)
    console.print(spread_table(found))
    console.print(found.sentence, markup=False, style="bold")


def _new_sensors(given: list[str]) -> "list[NewSensor]":
    """From `cart velocity:0.1` to a sensor that does not exist yet."""
    from bayespilco.trust.sensors import NewSensor

    found = []
    for each in given:
        name, _, std = each.rpartition(":")
        try:
            found.append(NewSensor(name.strip(), float(std)))
        except ValueError:
            raise ValueError(f"--add is STATE:NOISE, such as 'cart velocity:0.1'; given {each!r}.") from None
    return found


@app.command(
    "inspect",
    epilog="""**Example**

- `bayespilco inspect --delay log.csv --task cart-pole`: after how many steps the plant feels an action""",
)
def inspect_logs(
    logs: Annotated[list[Path], typer.Argument(help="Logged episodes, CSV files (docs/howto/own-data.md).")],
    task: Annotated[str, typer.Option(help="What was recorded: a task, or one of your own (file.py:name).")],
    delay: Annotated[bool, typer.Option("--delay", help="Compare delays of the actions by their evidence.")] = False,
    most: Annotated[int, typer.Option(min=1, help="The longest delay to try, in steps.")] = 5,
    sensors: SensorsOption = None,
    points: Annotated[int, typer.Option(min=1, help="Inducing points of each model.")] = 30,
    workers: WorkersOption = None,
    no_cache: NoCacheOption = False,
) -> None:
    """Say what logged data tell about the plant, before anything is learned."""
    if not delay:
        raise ValueError("Say what to inspect: --delay compares delays of the actions.")
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import runs
    from bayespilco.deploy import bridge
    from bayespilco.experiments.delays import delay_evidence
    from bayespilco.runs.workers import WorkerPool, available_cores

    names = None if sensors is None else [name.strip() for name in sensors.split(",")]
    chosen = runs.find_task(task).task.varied(names)
    episodes = [episode for log in logs for episode in bridge.with_logged(chosen, log).logged]
    longest = min(most, min(episode.steps for episode in episodes) - 1)
    console = Console(highlight=False)
    with WorkerPool(workers or available_cores()) as pool, console.status("training a model for each delay"):
        found = delay_evidence(chosen, episodes, range(longest + 1), points=points, workers=pool)
    best = max(found.log_evidence)
    for steps, evidence in zip(found.delays, found.log_evidence, strict=True):
        console.print(f"{steps} steps, {1e3 * steps * chosen.dt:6.4g} ms: {evidence - best:8.1f} nats")
    console.print(found.sentence)


@app.command()
def tasks() -> None:
    """List the tasks."""
    from bayespilco.console import tasks_table
    from bayespilco.tasks import TASKS

    Console(highlight=False).print(tasks_table({name: entry() for name, entry in TASKS.items()}))


@app.command()
def methods() -> None:
    """List the methods: how each predicts, and how it executes."""
    from bayespilco.console import methods_table

    Console(highlight=False).print(methods_table())


@app.command()
def bench(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for machines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only the smallest of each kind: under a minute.")] = False,
) -> None:
    """Measure what things take here: CPU and wall seconds, compilation, memory, beside the floor of the arithmetic.

    Takes several minutes. Run it on a quiet machine, and compare ratios rather than seconds.
    """
    from bayespilco.console import bench_row
    from bayespilco.experiments.bench import CASES, measure_all

    console = Console(highlight=False)
    cases = [case for case in CASES if case.get("points") == 60 or case["name"] == "control_step"] if quick else CASES
    if not as_json:
        console.print(bench_row())
    for figures in measure_all(cases):
        print(json.dumps(figures), flush=True) if as_json else console.print(bench_row(figures))

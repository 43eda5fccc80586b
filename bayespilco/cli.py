"""The command line: `bayespilco learn cart-pole`."""

import dataclasses
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bayespilco import startup
from bayespilco.version import VERSION

if TYPE_CHECKING:
    from bayespilco.runs import RunDirectory

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

TensorBoardOption = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard's files too (extra `tensorboard`).")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Processes to search policies with; the result is the same.", show_default="one per core"),
]
NoCacheOption = Annotated[
    bool,
    typer.Option("--no-cache", envvar=startup.NO_CACHE, help="Do not keep compiled code for the next run."),
]


def _option(default: str, help: str) -> Any:
    """An option that, left out, is as in the configuration given, or as by default: as said here (a test compares)."""
    return typer.Option(help=help, show_default=default)


def main(arguments: list[str] | None = None) -> None:
    """Run the command. Whatever the user can mend is said in one sentence on standard error, with exit code 2."""
    startup.single_thread()
    startup.collect_rarely()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"bayespilco: {message}", file=sys.stderr)
            code = app(arguments, prog_name="bayespilco", standalone_mode=False)
    except typer.TyperException as error:
        code = _complain(error.format_message())
    except (ValueError, OSError) as error:
        code = _complain(str(error))
    except typer.Abort:
        code = EXIT_INTERRUPTED
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

**Tasks**: cart-pole, pendulum, double-pendulum, spring (described by `bayespilco tasks`)

**Methods**: bayes-filter, pilco, deisenroth, dallaire (described by `bayespilco methods`)

**The directory** gets config.toml, metrics.jsonl and one episode-NN.safetensors per episode while learning goes on, and
evaluation.json, costs.png, learning.png, states.png, poses.png and motion.gif at the end. However learning was
interrupted, `bayespilco resume` goes on from there."""
)
def learn(
    task: Annotated[str, typer.Argument(help="What to learn: a task, or the config.toml of a run.")],
    method: Annotated[
        str | None, _option("bayes-filter", "How to predict and execute; see `bayespilco methods`.")
    ] = None,
    episodes: Annotated[int | None, _option("11", "Episodes in all, the first with random actions.")] = None,
    seed: Annotated[int | None, _option("0", "The same seed gives the same run.")] = None,
    training: Annotated[
        str | None, _option("evidence", "How to train the dynamics: evidence, or direct (the paper's).")
    ] = None,
    points: Annotated[int | None, _option("50", "Inducing points of the dynamics model.")] = None,
    evaluations: Annotated[int | None, _option("150", "Budget of one policy search, in values and gradients.")] = None,
    in_parts: Annotated[
        bool | None,
        typer.Option(
            "--in-parts/--whole",
            help="Whether later policy searches predict from parts of the first state's distribution, or from one.",
            show_default="in-parts",
        ),
    ] = None,
    executions: Annotated[int | None, _option("100", "How often to execute the final policy.")] = None,
    from_data: Annotated[
        Path | None, typer.Option(help="Start from logged episodes, a CSV file, not from random actions.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to save the run.", show_default="runs/TASK-METHOD-SEED")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in that directory.")] = False,
    workers: WorkersOption = None,
    tensorboard: TensorBoardOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Learn a task, save the run, and draw predicted against executed costs."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import deployment, runs
    from bayespilco.algorithm import find
    from bayespilco.tasks import TASKS

    asked = runs.Config.read(Path(task), complete=False) if task.endswith(".toml") else runs.Config(task)
    chosen = find(TASKS, asked.task, "task")()
    if tensorboard:
        runs.TensorBoard.check()
    if from_data is None and task.endswith(".toml") and (logged := Path(task).parent / runs.LOGGED).exists():
        from_data = logged  # the same again begins with the same data
    if from_data is not None:
        chosen = deployment.with_logged(chosen, from_data)
    options = {
        "method": method,
        "episodes": episodes,
        "seed": seed,
        "training": training,
        "points": points,
        "evaluations": evaluations,
        "in_parts": in_parts,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    settings = dataclasses.replace(asked.settings, **given)
    config = runs.Config(asked.task, settings, asked.executions if executions is None else executions)
    path = out or Path("runs") / f"{config.task}-{settings.method}-{settings.seed}"
    with runs.RunDirectory.create(path, config, chosen, force=force) as directory:
        _finish(directory, "Learning", tensorboard, workers)


@app.command(
    epilog="""**Examples**

- `bayespilco resume runs/first`: after Ctrl-C, a power cut or `kill -9`
- `bayespilco resume runs/first --episodes 20`: a run that needs more episodes than it was given"""
)
def resume(
    directory: Annotated[Path, typer.Argument(help="The directory of a run, what was `--out`.")],
    episodes: Annotated[
        int | None, typer.Option(help="Episodes in all, if not as many as at first.", show_default="as at first")
    ] = None,
    workers: WorkersOption = None,
    tensorboard: TensorBoardOption = False,
    no_cache: NoCacheOption = False,
) -> None:
    """Go on with an interrupted run, to the same result as if it had not been interrupted."""
    if not no_cache:
        startup.keep_compiled_code()
    from bayespilco import runs

    with runs.RunDirectory.open(directory) as opened:
        if other := opened.config.other_version(directory):
            print(f"bayespilco: {other}", file=sys.stderr)
        if episodes is not None:
            opened.extend(episodes)
        if opened.finished:
            print(f"Nothing to do: the run in {directory} is finished, with {len(opened.records)} episodes.")
        else:
            _finish(opened, "Resuming", tensorboard or opened.has_tensorboard, workers)


def _finish(directory: "RunDirectory", doing: str, tensorboard: bool, workers: int | None) -> None:
    """Learn what the run in a directory still lacks, execute its policy, and draw."""
    from bayespilco import report, runs
    from bayespilco.console import Display, evaluation_sentence
    from bayespilco.crew import Crew, available_cores

    run = runs.Run(directory.task, directory.config.settings, directory.records)
    console = Console(highlight=False)
    after = f" after {len(run.records)} of {run.settings.episodes} episodes" if run.records else ""
    console.print(
        f"{doing} [bold]{escape(run.task.name)}[/] with [bold]{run.method}[/], seed {run.settings.seed}{after}, "
        f"into {escape(str(directory.path))}"
    )
    watching = [runs.TensorBoard(directory.path)] if tensorboard else []
    try:
        with Display(console, run) as display:
            with Crew(workers or available_cores()) as crew:
                run = runs.go_on(run, [runs.keep_in(directory), *watching, display.on_run], display.on_progress, crew)
            display.say("executing the final policy")
            executed = runs.load_evaluation(directory.path) or run.evaluate(directory.config.executions)
            directory.keep_evaluation(executed)
            pictures = report.save_figures(run, executed, directory.path)
            directory.conclude(executed)
    except (KeyboardInterrupt, OSError) as end:
        saved = f"{len(directory.records)} of {run.settings.episodes} episodes are saved in {directory.path}"
        sentence = f"{saved}; go on with: bayespilco resume {directory.path}"
        if isinstance(end, OSError):
            raise OSError(f"{end} {sentence}") from end
        print(f"Interrupted. {sentence}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    console.print(evaluation_sentence(run, executed))
    console.print(f"Pictures: {', '.join(map(str, pictures))}", soft_wrap=True, markup=False)


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
    from bayespilco.console import JobsDisplay, comparison_table
    from bayespilco.experiments.cluster import Cluster
    from bayespilco.experiments.comparison import Study
    from bayespilco.experiments.jobs import Local
    from bayespilco.experiments.reproduce import claim
    from bayespilco.experiments.reproduce import reproduce as compute

    for name, value, lowest in (("seeds", seeds, 1), ("first-seed", first_seed, 0), ("ablations", ablations, 0)):
        if value < lowest:
            raise ValueError(f"--{name} must be at least {lowest}; given {value}.")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1; given {workers}.")
    study = Study(task, episodes, points, collecting, collecting_points, evaluations, in_parts, executions, samples)
    claim(study, out)
    console = Console(highlight=False)
    wanted = range(first_seed, first_seed + seeds)
    try:
        with Cluster(dask, out) if dask else Local(workers) as place, JobsDisplay(console) as display:
            failed = compute(
                study,
                out,
                wanted,
                place,
                ablations=ablations,
                command=_command(),
                on_status=display.on_status,
                on_seed=lambda seed, numbers: console.print(comparison_table(numbers)),
            )
    except KeyboardInterrupt:
        print(f"Interrupted. What is finished is in {out}; the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if (out / "index.html").exists():
        console.print(f"Results: {out / 'results.json'}, {out / 'index.html'}", soft_wrap=True, markup=False)
    if failed:
        for name, error in failed.items():
            print(f"bayespilco: {name} failed: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED)


def _command() -> str:
    """This command as it was given."""
    return shlex.join(["bayespilco", *sys.argv[1:]])


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    episode: Annotated[
        int | None, typer.Option(min=0, help="Learned after which episode, counted from 0.", show_default="the last")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write the controller of a run as one file, which `bayespilco.controller` loads with NumPy alone."""
    from bayespilco import export
    from bayespilco.controller import timing
    from bayespilco.runs import Run

    run = Run.load(directory)
    taken = run.controller if episode is None else run.controller_after(episode)
    export.save(taken, out, force=force)
    print(f"{out}: {out.stat().st_size} bytes; {timing(taken, steps=200)}")


@app.command()
def tasks() -> None:
    """List the tasks."""
    from bayespilco.console import tasks_table
    from bayespilco.tasks import TASKS

    Console(highlight=False).print(tasks_table({name: make() for name, make in TASKS.items()}))


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

"""Runs: learned, kept in a directory of plain files, resumed after any interruption, and loaded bit for bit.

    config.toml               what was asked for, and by which version
    episode-00.safetensors    what was executed and learned, one file per episode
    metrics.jsonl             one line of numbers per episode
    logged.csv                the episodes that it started from, if there were any
    evaluation.safetensors    executions of the final policy
    evaluation.json           what they came to

The episodes' files are the run; the rest is derived from them. Each file is there completely or not at all, so a run
can be killed at any moment. Nothing is pickled: a run from someone else can be loaded without running their code.

To read it: `arrays` (a module as a file), `config`, `directory`, `run`, `learning`, `tensorboard`. How a file is
written is in `bayespilco.files`.
"""

from bayespilco.runs.config import Config as Config
from bayespilco.runs.directory import LOGGED as LOGGED
from bayespilco.runs.directory import RunDirectory as RunDirectory
from bayespilco.runs.directory import load_evaluation as load_evaluation
from bayespilco.runs.learning import Callback as Callback
from bayespilco.runs.learning import go_on as go_on
from bayespilco.runs.learning import keep_in as keep_in
from bayespilco.runs.learning import learn as learn
from bayespilco.runs.learning import resume as resume
from bayespilco.runs.learning import stop_below as stop_below
from bayespilco.runs.run import Run as Run
from bayespilco.runs.tensorboard import TensorBoard as TensorBoard

"""Runs: learned, kept in a directory of plain files, resumed after any interruption, and loaded bit for bit.

    config.toml               what was asked for, and by which version
    task.json                 the task: everything of it but its code
    episode-00.safetensors    what was executed and learned, one file per episode
    metrics.jsonl             one line of numbers per episode
    certificate.json          what the last policy promises, and whether its trial is a GO
    logged.csv                the episodes that it started from, if there were any
    evaluation.safetensors    executions of the final policy
    evaluation.json           what they came to

The episodes' files are the run; the rest is derived from them. Each file is there completely or not at all, so a run
can be killed at any moment. Nothing is pickled: a run from someone else can be loaded without running their code.

To read it: `arrays` (a module as a file), `plain` (a task as a file), `own_tasks` (a task from a user's code),
`config`, `directory`, `run`, `certifying`, `learning` (the assembly), `display`, `tensorboard`. How a file is written
is in `bayespilco.deploy.files`.
"""

from bayespilco.runs.config import Config as Config
from bayespilco.runs.directory import LOGGED as LOGGED
from bayespilco.runs.directory import RunDirectory as RunDirectory
from bayespilco.runs.directory import is_finished as is_finished
from bayespilco.runs.directory import load_evaluation as load_evaluation
from bayespilco.runs.directory import read_certificate as read_certificate
from bayespilco.runs.directory import read_promises as read_promises
from bayespilco.runs.learning import Callback as Callback
from bayespilco.runs.learning import Interrupted as Interrupted
from bayespilco.runs.learning import checkpoint as checkpoint
from bayespilco.runs.learning import learn as learn
from bayespilco.runs.learning import resume as resume
from bayespilco.runs.learning import stop_below as stop_below
from bayespilco.runs.own_tasks import find_task as find_task
from bayespilco.runs.run import Run as Run
from bayespilco.runs.tensorboard import TensorBoard as TensorBoard

"""A run as a directory of plain files, written while it is learned and read back bit for bit.

    config.toml               what was asked for
    metrics.jsonl             one line of numbers per episode
    episode-00.safetensors    what was executed and learned, one file per episode
    evaluation.safetensors    executions of the final policy

Nothing is pickled: a run from someone else can be loaded without running their code.
"""

from bayespilco.runs.directory import Config as Config
from bayespilco.runs.directory import RunDirectory as RunDirectory
from bayespilco.runs.directory import load as load
from bayespilco.runs.directory import load_evaluation as load_evaluation

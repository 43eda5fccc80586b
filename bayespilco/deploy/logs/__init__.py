"""Logged episodes as a table: a CSV file or a data frame with one row per sample, columns by name.

    episode,time,position [m],velocity [m/s],force [N]
    0,0.0,0.012,-0.08,1.31
    0,0.2,0.034,,-0.27
    0,0.4,0.041,0.11,

`time` is in seconds (`time [ms]` in milliseconds) and advances by the sampling period. The action in a row answers the
observation in that row, and is held until the next. An episode's last row needs none. An empty cell, or `nan`, is a
sample that is missing. Columns may be in any order, with or without units. Further columns are not used.

    table      from a file or a data frame to rows of cells
    columns    which column is which
    reading    from rows to episodes
    writing    from episodes to a file
"""

from bayespilco.deploy.logs.columns import COLUMNS, HEALTH, TIME_UNITS
from bayespilco.deploy.logs.reading import CHANGE, ROUNDING, TOLERANCE, Log, read
from bayespilco.deploy.logs.table import Frame
from bayespilco.deploy.logs.writing import append, check_appendable, heading, next_episode, text

__all__ = [
    "CHANGE",
    "COLUMNS",
    "HEALTH",
    "ROUNDING",
    "TIME_UNITS",
    "TOLERANCE",
    "Frame",
    "Log",
    "append",
    "check_appendable",
    "heading",
    "next_episode",
    "read",
    "text",
]

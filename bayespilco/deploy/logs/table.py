"""From a file or a data frame to a table: a header, and rows of cells that know where they stand."""

import codecs
import csv
import io
import stat
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class Frame(Protocol):
    """A data frame, such as one of pandas or polars. Neither is imported here."""

    columns: Any

    def to_numpy(self) -> Any: ...


class Row(NamedTuple):
    place: str
    """Such as `line 3`."""
    cells: list[Any]
    """Strings from a file. Any values from a data frame."""


class Table(NamedTuple):
    name: str
    """What errors call it: the path of a file, or `The data frame`."""
    header: Row
    rows: list[Row]


def table(source: Path | str | Frame) -> Table:
    """The table in a file or a data frame. Empty ones are refused."""
    if isinstance(source, Path | str):
        rows = [Row(f"line {number}", cells) for number, cells in lines(source, content(source))]
        if not rows:
            raise ValueError(f"{source} is empty: its first line must name the columns.")
        name, header, rows = str(source), rows[0], rows[1:]
    else:
        name, header = "The data frame", Row("header", [str(column).strip() for column in source.columns])
        rows = [Row(f"row {number}", list(cells)) for number, cells in enumerate(source.to_numpy())]
    if not rows:
        raise ValueError(f"{name} has no rows below its first line.")
    return Table(name, header, rows)


def content(path: Path | str) -> str:
    """The text of a file, in UTF-8 or UTF-16."""
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # /dev/full, say, has no end
            raise ValueError(f"{path} cannot be read: it is a device, not a file.")
        data = Path(path).read_bytes()
        return data.decode(_encoding(data))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _encoding(data: bytes) -> str:
    """Spreadsheets mark their files with a first character. UTF-16 without it shows by its zeros: every second byte."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for first, encoding in ((0, "utf-16-be"), (1, "utf-16-le")):
        half = data[first:1000:2]
        if half and half.count(0) > len(half) / 2:
            return encoding
    return "utf-8-sig"


def lines(path: Path | str, text: str) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, each with the number of the line that it ends on."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    return [(line, row) for line, row in rows if any(row)]

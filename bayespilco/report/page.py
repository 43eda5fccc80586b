"""Self-contained pages: one HTML file with everything in it, which asks nothing of a network.

The pages, their styles and their scripts are files of their own in `pages/`. Here they are put together with the data.
"""

import html
import json
import math
from importlib import resources
from typing import Any

import numpy as np


def read(name: str) -> str:
    """One of the files in `pages/`."""
    return resources.files("bayespilco.report").joinpath("pages", name).read_text(encoding="utf-8")


def assemble(page: str, *, styles: tuple[str, ...], scripts: tuple[str, ...], data: Any, **texts: str) -> str:
    """A page with its styles, scripts and data in it.

    Args:
        page: The page's file. It has places such as `{{title}}`.
        data: What its script reads: anything that JSON can say, and NumPy's arrays.
        texts: What to put into the other places, as plain text.
    """
    filled = {name: html.escape(text) for name, text in texts.items()}
    filled["style"] = "\n".join(map(read, styles))
    filled["script"] = "\n".join(read(script).replace('"use strict";\n', "") for script in scripts)
    filled["script"] = '"use strict";\n' + filled["script"]
    filled["setup"] = as_json(data)
    before, *rest = read(page).split("{{")
    parts = [before]
    for piece in rest:  # what is filled in is not searched for places again
        name, _, after = piece.partition("}}")
        parts += [filled.pop(name) if name in ("style", "script", "setup") else filled[name], after]
    return "".join(parts)


def as_json(data: Any) -> str:
    """JSON inside a script element: no tag can end it early. What is not finite is null."""
    text = json.dumps(plain(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def plain(data: Any) -> Any:
    """Lists, dictionaries, strings and finite numbers; None for NaN and infinity."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if data is None or isinstance(data, str | int):
        return data
    return plain(np.asarray(data).tolist())

"""What the documentation site needs beside its pages: copies of the sources that pages link to.

Pages are also read where the repository is, and so link to files outside of `docs/`. On the site such a link leads to a
copy of the file. A link to a file that does not exist is an error. A picture `x.svg` beside which there is `x-dark.svg`
is shown in the scheme of the reader.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)#]+)(\.\w+)\)")
LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links out of `docs/` lead to copies in the site's `source/`, and pictures follow the scheme."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, match[1]))
        if target.startswith("docs/"):
            return match[0]
        if not (ROOT / target).is_file():
            raise PluginError(f"{page.file.src_uri} links to {match[1]}, which does not exist.")
        name = f"source/{target}.txt"
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content=(ROOT / target).read_text(encoding="utf-8")))
        return f"]({posixpath.relpath(name, here or '.')}{match[2] or ''})"

    def both(match: re.Match[str]) -> str:
        alternative, name, suffix = match.groups()
        if not (ROOT / "docs" / here / f"{name}-dark{suffix}").is_file():
            return match[0]
        return f"![{alternative}]({name}{suffix}#only-light)![{alternative}]({name}-dark{suffix}#only-dark)"

    return PICTURE.sub(both, LINK.sub(lead, markdown))

"""What mkdocs must be told: pages that lie outside this folder, and where links between them lead.

Pages are written for GitHub, where a link is a path in the repository. On the site the pages
outside this folder are below ``project/``; what is no page, such as a folder, has no link there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

CHECKOUT = Path(__file__).resolve().parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "templates/README.md")
PROJECT = "project/"

_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside this folder."""
    for path in OUTSIDE:
        text = (CHECKOUT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, PROJECT + path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links where the site has their pages, outside of code."""
    at = page.file.src_uri
    source = at.removeprefix(PROJECT) if at.startswith(PROJECT) else f"docs/{at}"
    done, parts = 0, []
    for block in _FENCED.finditer(markdown):
        parts.append(links(markdown[done : block.start()], source, at))
        # Markdown of Python knows no blocks within lists: they stand at the margin.
        parts.append(re.sub(rf"^{block['indent']}", "", block[0], flags=re.MULTILINE))
        done = block.end()
    return "".join([*parts, links(markdown[done:], source, at)])


def links(text: str, source: str, at: str) -> str:
    """Return a text whose links are those of the site.

    Parameters
    ----------
    text : str
    source : str
        The page's path in the repository, which its links count from.
    at : str
        Its path on the site.
    """

    def lead(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in OUTSIDE:
            to = PROJECT + path
        elif path.startswith("docs/") and (CHECKOUT / path).is_file():
            to = path.removeprefix("docs/")
        elif (CHECKOUT / path).exists():
            return match["text"].lstrip("!")[1:-1]
        else:
            return match[0]  # mkdocs says that it leads nowhere
        to = posixpath.relpath(to, posixpath.dirname(at) or ".")
        return f"{match['text']}({to}{anchor})"

    return _LINK.sub(lead, text)

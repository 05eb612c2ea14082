"""Hook of mkdocs: pages link to files of the repository, which come along with the site."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(\.\./([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to."""
    pages = [page for page in files if page.src_uri.endswith(".md")]
    for name in sorted({name for page in pages for name in LINK.findall(page.content_string)}):
        content = _content(ROOT / name)
        files.append(File.generated(config, _place(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links there."""
    return LINK.sub(lambda link: f"]({_place(link[1])}", markdown)


def _place(name: str) -> str:
    # As text: a browser should show a script or a record, not offer to run or save it.
    return f"repository/{name.rstrip('/')}.txt"


def _content(path: Path) -> str:
    if path.is_dir():
        return "\n".join(sorted(entry.name for entry in path.iterdir()))
    return path.read_text(encoding="utf-8")

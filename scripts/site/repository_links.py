"""Hook of mkdocs: pages of `papers/` are part of the site, and files that pages link to come along.

A page may link to any file of the repository, as it does where the repository is browsed. Pages of
`papers/docs` stand in the site under `papers/`; other files, under `repository/`, as plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
# Folders of the repository, and where their files stand in the site.
PARTS = {"docs": "", "papers/docs": "papers"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the papers, and every file of the repository that a page links to."""
    folder = ROOT / "papers" / "docs"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = f"papers/{path.relative_to(folder).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    pages = [page for page in files if page.src_uri.endswith(".md")]
    linked = {name for page in pages for name in _linked(page.content_string, page.src_uri)}
    for name in sorted(name for name in linked if _part(name) is None):
        files.append(File.generated(config, _place(name), content=_content(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links to where the files stand in the site."""
    source = page.file.src_uri

    def pointed(link: re.Match[str]) -> str:
        target = _place(_target(link[1], source))
        return f"]({os.path.relpath(target, PurePosixPath(source).parent)}"

    return LINK.sub(pointed, markdown)


def _linked(markdown: str, source: str) -> set[str]:
    return {_target(link, source) for link in LINK.findall(markdown)}


def _target(link: str, source: str) -> str:
    """The file of the repository that a link on a page of the site leads to."""
    from_papers = source.startswith("papers/")
    written = f"papers/docs/{source.removeprefix('papers/')}" if from_papers else f"docs/{source}"
    return os.path.normpath(PurePosixPath(written).parent / link)


def _part(name: str) -> str | None:
    """The folder of pages that holds a file; None if it is elsewhere in the repository."""
    return next((part for part in PARTS if name.startswith(f"{part}/")), None)


def _place(name: str) -> str:
    """Where a file of the repository stands in the site."""
    part = _part(name)
    if part is not None:
        return str(PurePosixPath(PARTS[part]) / name.removeprefix(f"{part}/"))
    # As text: a browser should show a script or a record, not offer to run or save it.
    return f"repository/{name}.txt"


def _content(path: Path) -> str:
    if path.is_dir():
        return "\n".join(sorted(entry.name for entry in path.iterdir()))
    return path.read_text(encoding="utf-8")

"""Hook of mkdocs: what the pages link to outside of docs/ becomes part of the site, and marks of numbers are left out.

In the repository a page links to `../../benchmarks/results/blind.json` or `../../examples/segment_onnx.py`, which works
wherever Markdown is rendered beside the files. The site has a copy of each such file under `repository/`: Markdown as a
page, code as a page with its text, a folder as a page with its list, anything else as it is. Links of these pages are
followed in the same way. Nothing that no page leads to is copied.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
MARK = re.compile(r"<!--(?:(?:value|text|command) .+?|/)-->", re.S)
CODE = {".py": "python", ".toml": "toml", ".sh": "sh", ".jsonl": "json"}
"""Kinds of files that are shown on a page, and the language of each."""
UNLISTED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Head of a page that the search leaves out."""

_sources: dict[str, Path] = {}
"""File or folder in the repository behind every copy, by its place in the site."""


def site_path(path: Path) -> str:
    """Return the place in the site of a file or folder of the repository, such as `repository/examples/a.py.md`."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    place = f"repository/{path.relative_to(ROOT).as_posix()}"
    if path.is_dir():
        return f"{place}/index.md"
    return f"{place}.md" if path.suffix in CODE else place


def page_text(path: Path) -> str:
    """Return the Markdown that shows a file or folder of the repository."""
    if path.is_dir():
        names = sorted(child.name for child in path.iterdir() if child.name[0] not in "._")
        return f"# {path.relative_to(ROOT)}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"
    text = path.read_text()
    if path.suffix in CODE:
        fence = "`" * 5
        return f"{UNLISTED}# {path.relative_to(ROOT)}\n\n{fence}{CODE[path.suffix]}\n{text}{fence}\n"
    return text


def linked(path: Path, text: str) -> set[Path]:
    """Return the files and folders of the repository that a page links to."""
    base = path if path.is_dir() else path.parent
    targets = {Path(os.path.normpath(base / target)) for target in LINK.findall(text)}
    return {target for target in targets if target.is_relative_to(ROOT) and target.exists()}


def with_links_of_the_site(path: Path, text: str) -> str:
    """Return the text of a page with its links as they are in the site."""
    base, here = path if path.is_dir() else path.parent, os.path.dirname(site_path(path))

    def replaced(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(base / found[0]))
        known = target.is_relative_to(ROOT) and target.exists()
        return os.path.relpath(site_path(target), here) if known else found[0]

    return LINK.sub(replaced, text)


def on_files(files: Files, config: Any) -> Files:
    """Add a copy of everything outside of docs/ that a page links to, or that such a copy links to."""
    _sources.clear()
    waiting = [
        path for page in files.documentation_pages() for path in linked(DOCS / page.src_uri, page.content_string)
    ]
    while waiting:
        path = waiting.pop()
        place = site_path(path)
        if path.is_relative_to(DOCS) or place in _sources:
            continue
        _sources[place] = path
        if place.endswith(".md"):
            text = page_text(path)
            waiting += linked(path, text)
            files.append(File.generated(config, place, content=text))
        else:
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Return the text of a page without the marks of its numbers, and with the links of the site."""
    source = _sources.get(page.file.src_uri, DOCS / page.file.src_uri)
    return with_links_of_the_site(source, MARK.sub("", markdown))

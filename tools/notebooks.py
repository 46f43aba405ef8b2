"""Run the notebooks of examples/notebooks and store what they print and draw: `make notebooks`.

    python tools/notebooks.py                      # all of them at full size, some minutes each
    python tools/notebooks.py operator             # one of them
    python tools/notebooks.py --quick              # on tiny data; writes nothing

The code cells of a notebook become one program, which runs in a process and a folder of its own: no Jupyter is needed.
What each cell prints and shows with `plt.show()` is stored; the value of a last line is not, so notebooks print. The
picture of the cell with the tag `picture` goes to docs/images as well, for docs/start/notebooks.md. A notebook with a
cell that raises, warns on the standard error or leaves a figure unshown is refused, and its file stays as it was.
Nothing in a file depends on the time or the place where it was made.
"""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from results import ROOT

FOLDER = ROOT / "examples" / "notebooks"
IMAGES = ROOT / "docs" / "images"
QUICK = "FHEAT_QUICK"
"""Environment variable with which the notebooks choose tiny sizes."""
PICTURE = "picture"
"""Tag of the cell whose picture docs/start/notebooks.md shows."""
DOTS_PER_INCH = 80
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
Cell = dict[str, Any]
Notebook = dict[str, Any]
Outputs = list[dict[str, Any]]
"""The outputs of one cell in the notebook format, version 4.5."""


class NotebookError(Exception):
    """A notebook that does not run to its end, or not without a warning."""


class Recorder:
    """Records what the cells of a notebook print and show; the program that a notebook becomes calls it.

    It takes the place of the standard output and of `plt.show`. The file with the outputs is written after each cell,
    so that the caller can tell which cell an exception belongs to.
    """

    def __init__(self, file: str) -> None:
        from matplotlib import pyplot as plt

        self.file, self.plt, self.backend = Path(file), plt, plt.get_backend()
        self.cells: list[Outputs] = []
        self.current: Outputs = []
        self.printed = sys.stdout = StringIO()
        plt.show = lambda: self.show()  # a function, which matplotlib marks when it loads its backend

    def show(self) -> None:
        """Record all open figures and close them."""
        self._take_text()
        for number in self.plt.get_fignums():
            content = BytesIO()
            figure = self.plt.figure(number)
            figure.savefig(content, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
            self.plt.close(figure)
            picture = {"image/png": base64.b64encode(content.getvalue()).decode() + "\n"}
            self.current.append({"data": picture, "metadata": {}, "output_type": "display_data"})

    def end_cell(self) -> None:
        """Store the outputs of a cell, and refuse what Jupyter would show differently."""
        if self.plt.get_fignums():
            raise NotebookError("a figure was drawn and not shown: end the cell with plt.show()")
        if self.plt.get_backend() != self.backend:
            raise NotebookError("the backend of matplotlib was replaced: Jupyter would show no figure any more")
        self._take_text()
        self.cells.append(self.current)
        self.current = []
        self.file.write_text(json.dumps(self.cells))

    def _take_text(self) -> None:
        if text := self.printed.getvalue():
            self.current.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
        self.printed = sys.stdout = StringIO()


def notebooks() -> list[Path]:
    """Return the notebooks of the repository in alphabetical order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read_notebook(path: Path) -> Notebook:
    """Return a notebook as plain data."""
    content: Notebook = json.loads(path.read_text())
    return content


def code_of(notebook: Notebook) -> list[str]:
    """Return the sources of the code cells."""
    return ["".join(cell["source"]) for cell in _code_cells(notebook)]


def fingerprint(notebook: Notebook) -> str:
    """Return the sha256 of all code: outputs that were stored with another one are out of date."""
    return hashlib.sha256(json.dumps(code_of(notebook)).encode()).hexdigest()


def program(sources: Sequence[str], record: Path) -> str:
    """Return the program that the code cells make together; it writes their outputs to `record`."""
    begin = f"from notebooks import Recorder as _Recorder\n\n_recorder = _Recorder({str(record)!r})\n"
    return begin + "".join(f"\n# cell {n}\n{code}\n_recorder.end_cell()\n" for n, code in enumerate(sources, start=1))


def execute(sources: Sequence[str], *, quick: bool) -> list[Outputs]:
    """Run code cells in order and return the outputs of each, or raise `NotebookError` with the cell and the reason.

    With `quick` the notebooks choose tiny sizes. The process gets a folder of its own, which is removed at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, record, place = Path(folder) / "cells.py", Path(folder) / "outputs.json", Path(folder) / "place"
        place.mkdir()
        script.write_text(program(sources, record))
        environment = {name: value for name, value in os.environ.items() if name != QUICK}
        paths = [str(ROOT / "tools"), str(ROOT / "src"), environment.get("PYTHONPATH", "")]
        # A backend that nothing in the package chooses, so that a replaced one is noticed.
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "MPLBACKEND": "svg"}
        environment |= {QUICK: "1"} if quick else {}
        command = [sys.executable, str(script)]
        finished = subprocess.run(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
        cells: list[Outputs] = json.loads(record.read_text()) if record.is_file() else []
    if finished.returncode or len(cells) != len(sources):
        raise NotebookError(f"code cell {len(cells) + 1}: {finished.stderr.strip() or 'ended the program'}")
    if finished.stderr.strip():
        raise NotebookError(f"it wrote to the standard error: {finished.stderr.strip()}")
    return cells


def with_outputs(notebook: Notebook, outputs: Sequence[Outputs]) -> Notebook:
    """Return the notebook with these outputs of its code cells, in order, and with no metadata but tags and our own."""
    waiting = iter(outputs)
    cells = []
    for cell in notebook["cells"]:
        kept = {name: cell[name] for name in ("cell_type", "id", "source")}
        kept["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] == "code":
            number = sum("outputs" in each for each in cells) + 1
            kept |= {"execution_count": number, "outputs": next(waiting)}
        cells.append(kept)
    metadata = METADATA | {"fheat": {"outputs_of": fingerprint(notebook)}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def as_text(notebook: Notebook) -> str:
    """Return the file of a notebook as Jupyter writes it, with keys in alphabetical order."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def picture_of(notebook: Notebook) -> bytes:
    """Return the picture of the cell with the tag `picture`, a PNG file."""
    (cell,) = (cell for cell in _code_cells(notebook) if PICTURE in cell["metadata"].get("tags", ()))
    (picture,) = (output["data"]["image/png"] for output in cell["outputs"] if "data" in output)
    return base64.b64decode(picture)


def image_of(path: Path) -> Path:
    """Return where the picture of a notebook lies for the documentation."""
    return IMAGES / f"notebook-{path.stem.replace('_', '-')}.png"


def _code_cells(notebook: Notebook) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [path.stem for path in notebooks()]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of {', '.join(names)} if none is given")
    parser.add_argument("--quick", action="store_true", help="run them on tiny data and write nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no notebook {unknown[0]}: choose from {', '.join(names)}")
    for path in notebooks():
        if options.names and path.stem not in options.names:
            continue
        notebook = read_notebook(path)
        try:
            done = with_outputs(notebook, execute(code_of(notebook), quick=options.quick))
        except NotebookError as error:
            print(f"{path.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
        if not options.quick:
            path.write_text(as_text(done))
            image_of(path).write_bytes(picture_of(done))
        print(f"{path.relative_to(ROOT)}: {'ran' if options.quick else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The notebooks run on tiny data, their stored outputs are those of their code, and nothing in them names a machine."""

import ast
import re
import subprocess
import sys

import nbformat
import notebooks
import pytest
from notebooks import NotebookError, execute, with_outputs
from results import ROOT

PATHS = notebooks.notebooks()
PAGE = (ROOT / "docs" / "start" / "notebooks.md").read_text()
NAMES = ["four_labels", "operator", "which_layers_want_mixing"]
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def made_of(*sources):
    """Return a notebook with these code cells, as somebody who works in Jupyter may leave it."""
    dirt = {"execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"}, "tags": ["kept"]}
    fresh = {"cell_type": "code", "metadata": dirt, "execution_count": 7, "outputs": []}
    cells = [fresh | {"id": f"c{n}", "source": [source]} for n, source in enumerate(sources)]
    return {"cells": cells, "metadata": {"kernelspec": {"name": "mine"}}, "nbformat": 4, "nbformat_minor": 5}


def texts(outputs):
    return ["".join(output["text"]) for output in outputs]


def test_there_are_three():
    assert [path.stem for path in PATHS] == NAMES


@pytest.mark.slow
@each_notebook
def test_it_runs_on_tiny_data(path):
    stored = notebooks.read_notebook(path)
    outputs = execute(notebooks.code_of(stored), quick=True)
    cells = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    for cell, now in zip(cells, outputs, strict=True):
        assert [output["output_type"] for output in now] == [output["output_type"] for output in cell["outputs"]]


@each_notebook
def test_the_file_is_valid_and_as_the_tool_writes_it(path):
    nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))
    stored = notebooks.read_notebook(path)
    outputs = [cell["outputs"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert path.read_text() == notebooks.as_text(with_outputs(stored, outputs))
    assert path.stat().st_size < 2**20


@each_notebook
def test_the_outputs_are_those_of_the_code(path):
    stored = notebooks.read_notebook(path)
    assert stored["metadata"]["fheat"]["outputs_of"] == notebooks.fingerprint(stored), "run make notebooks"
    kinds = {output["output_type"] for cell in stored["cells"] for output in cell.get("outputs", ())}
    assert kinds == {"stream", "display_data"}


@each_notebook
def test_nothing_in_it_names_a_machine_or_a_time(path):
    for cell in notebooks.read_notebook(path)["cells"]:
        printed = "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
        text = "".join(cell["source"]) + printed
        assert not re.search(r"(^|[\s\"'(=])/(home|root|work|data|mnt|tmp|var|Users)/|[A-Z]:\\|\b0x[0-9a-f]{6}", text)
        assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\d(\.\d+)? (s|seconds|it/s)\b", printed)


@each_notebook
def test_it_is_as_long_as_a_lesson_and_ends_with_what_to_read_next(path):
    cells = notebooks.read_notebook(path)["cells"]
    assert 15 <= len(cells) <= 25
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "## What to read next" in "".join(cells[-1]["source"])
    code = notebooks.code_of({"cells": cells})
    assert 'QUICK = bool(os.environ.get("FHEAT_QUICK"))' in code[0]
    for source in code:
        last = ast.parse(source).body[-1]
        shown = ast.unparse(last.value.func) if isinstance(last, ast.Expr) else None
        assert shown in (None, "print", "plt.show"), f"the value of {ast.unparse(last)} is shown in Jupyter only"


@each_notebook
def test_its_links_lead_somewhere(path):
    for cell in notebooks.read_notebook(path)["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
                assert (path.parent / target).is_file(), target


@each_notebook
def test_the_page_shows_it_with_its_picture(path):
    image = notebooks.image_of(path)
    assert f"](../../{path.relative_to(ROOT).as_posix()})" in PAGE
    assert f"](../images/{image.name})" in PAGE
    assert image.read_bytes() == notebooks.picture_of(notebooks.read_notebook(path)), "run make notebooks"


@pytest.mark.slow
def test_cells_share_their_names_and_each_has_its_outputs():
    drawn = "import matplotlib.pyplot as plt\nprint('before')\nplt.plot([1, 2])\nplt.show()\nprint('after')"
    sources = ["import os\nn = 2", "print(n)\nprint(os.environ.get('FHEAT_QUICK'))", drawn]
    quick = execute(sources, quick=True)
    assert [texts(quick[0]), texts(quick[1])] == [[], ["2\n1\n"]]
    before, picture, after = quick[2]
    assert texts([before, after]) == ["before\n", "after\n"]
    assert picture["data"]["image/png"].startswith("iVBOR")
    assert execute(sources, quick=False)[1:] == [[{**quick[1][0], "text": ["2\n", "None\n"]}], quick[2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", "code cell 2: .*ZeroDivisionError"),
        ("raise SystemExit", "code cell 2: ended the program"),
        ("import warnings\nwarnings.warn('careful')", "standard error: .*careful"),
        ("import matplotlib.pyplot as plt\nplt.plot([1])", "code cell 2: .*not shown: end the cell with plt.show"),
        ("import matplotlib\nmatplotlib.use('agg')", "code cell 2: .*backend of matplotlib was replaced"),
    ],
)
def test_a_notebook_that_readers_would_stumble_over_is_refused(source, says):
    with pytest.raises(NotebookError, match=re.compile(says, re.S)):
        execute(["n = 1", source], quick=True)


def test_what_jupyter_leaves_behind_is_not_stored():
    notebook = made_of("n = 1", "print(n)")
    done = with_outputs(notebook, [[], [{"name": "stdout", "output_type": "stream", "text": ["1\n"]}]])
    assert [cell["execution_count"] for cell in done["cells"]] == [1, 2]
    assert [cell["metadata"] for cell in done["cells"]] == [{"tags": ["kept"]}] * 2
    assert done["metadata"] == notebooks.METADATA | {"fheat": {"outputs_of": notebooks.fingerprint(notebook)}}
    assert notebooks.as_text(done) == notebooks.as_text(with_outputs(done, [cell["outputs"] for cell in done["cells"]]))
    nbformat.validate(nbformat.from_dict(done))
    assert notebooks.fingerprint(made_of("n = 1", "print( n)")) != notebooks.fingerprint(notebook)


def test_an_unknown_name_is_refused_with_the_known_ones():
    tool = [sys.executable, str(ROOT / "tools" / "notebooks.py"), "operater"]
    ended = subprocess.run(tool, capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"there is no notebook operater: choose from {', '.join(NAMES)}" in ended.stderr

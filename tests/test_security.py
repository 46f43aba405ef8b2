"""Nothing in the repository executes what a file holds: calls and imports that could are refused by name."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("src", "tools", "benchmarks", "studies", "examples") for path in (ROOT / folder).rglob("*.py")
)
MODULES = {"cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "runpy", "shelve"}
CALLS = {
    *("eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "pandas.read_pickle"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.unsafe_load_all"),
}
METHODS = {"extractall", "unpack_archive"}
"""Names that are refused on every object: a path in an archive may lead out of the folder."""
KEYWORDS = {"shell", "allow_pickle"}
"""Arguments that may only be given as False."""


def violations(text):
    """Return what a source file does that it must not, with the line."""
    tree = ast.parse(text)
    names = {}  # what a name in this file stands for, by its import
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return [f"line {node.lineno}: {what}" for node in ast.walk(tree) for what in violated(node, names)]


def violated(node, names):
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        yield from (f"imports {name}" for name in modules if set(name.split(".")) & MODULES)
    elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        whole = dotted(node, names)  # a mere mention is refused too: `read = torch.load` is a call in disguise
        if whole in CALLS or whole.rpartition(".")[2] in METHODS:
            yield f"uses {whole}"
    elif isinstance(node, ast.keyword) and node.arg in KEYWORDS and getattr(node.value, "value", None) is not False:
        yield f"gives {node.arg}"


def dotted(node, names):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_executes_foreign_data(path):
    assert violations(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import ray.cloudpickle as cp",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path)",
        "from torch import load\nload(path)",
        "import torch\nread = torch.load",
        "eval(text)",
        "exec(text)",
        "compile(text, 'a', 'exec')",
        "import zipfile\nzipfile.ZipFile(path).extractall()",
        "import shutil\nshutil.unpack_archive(path)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import subprocess\nsubprocess.run(text, shell=choice)",
        "import os\nos.system(text)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
    ],
)
def test_the_rules_see_what_they_refuse(text):
    assert len(violations(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "network.eval()",
        "import ast\nast.literal_eval(text)",
        "import torch\ntorch.compile(network)",
        "import re\nre.compile(text)",
        "import json\njson.load(file)",
        "import yaml\nyaml.safe_load(text)",
        "import numpy\nnumpy.load(path, allow_pickle=False)",
    ],
)
def test_the_rules_let_harmless_calls_pass(text):
    assert violations(text) == []

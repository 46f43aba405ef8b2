"""The recipes docs/how-to/add-a-method.md and add-a-network.md, followed to the letter.

Their code becomes a package of its own, installed beside fheat: it trains, resumes, is listed, saved and predicted
with, and no file of fheat changes.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fheat
from fheat.cli.main import main

ROOT = Path(__file__).parents[1]
SOURCE = Path(fheat.__file__).parent
SMALL = ["--patch-size", "16", "16", "16", "--labelled", "2", "--warm-up", "1", "--device", "cpu"]
PROGRAM = """
import json, os, sys
from types import SimpleNamespace
from fheat.cli.main import main

sys.modules["fheat.report.write"] = SimpleNamespace(write_report=lambda *arguments, **options: "none")
for words in json.loads(sys.argv[1]):
    if words[0] == "rename":
        os.rename(*words[1:])
        continue
    try:
        code = main(words)
    except SystemExit as stop:  # of --help
        code = stop.code
    print(f"<<{code}>>", flush=True)
"""


def install(site):
    """Write the code of the page as pip would install it."""
    page = "".join((ROOT / "docs" / "how-to" / f"add-a-{what}.md").read_text() for what in ("method", "network"))
    for name, code in re.findall(r"```python\n# (my_fheat/\w+\.py)\n(.*?)```", page, re.S):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(code)
    (site / "my_fheat" / "__init__.py").write_text("")
    declared = next(block for block in re.findall(r"```toml\n(.*?)```", page, re.S) if "fheat.methods" in block)
    groups = tomllib.loads(declared)["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in one.items()) for group, one in groups.items()
    ]
    information = site / "my_fheat-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-fheat\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join(lines))


def run(site, *commands):
    """Run the program several times in one process that sees the package; return what each printed, and its code."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", PROGRAM, json.dumps([[*map(str, words)] for words in commands])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    return [(text, int(code)) for text, code in re.findall(r"(.*?)<<(\d+)>>\n", done.stdout, re.S)], done.stderr


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site-packages")
    install(folder)
    before = digest(SOURCE)
    yield folder
    assert digest(SOURCE) == before, "a recipe has changed the package"


@pytest.fixture(scope="module")
def done(site, tmp_path_factory):
    """What follows in one process: its folder, what each verb printed with its exit code, and what went wrong."""
    folder = tmp_path_factory.mktemp("done")
    scans, out, masks = folder / "scans", folder / "run", folder / "masks"
    entropy = ["train", scans, "--method", "entropy", "--network", "tiny", "--network.width", "4"]
    entropy += ["--method.weight", "0.2", *SMALL, "--iterations", "4", "--checkpoint-every", "2", "--json"]
    printed, error = run(
        site,
        ["data", "phantom", scans, "--cases", "6", "--test", "1", "--shape", "26", "24", "25"],
        ["models", "--json", "--patch-size", "32", "32", "32"],
        ["train", "--method", "entropy", "--help"],
        [*entropy, "--out", out],
        ["allocation", out / "final", "--json"],
        ["predict", out / "final", scans / "imagesTs", masks, "--device", "cpu", "--runtime", "torch"],
        ["rename", out / "checkpoints" / "step-00000004", folder / "last checkpoint"],
        ["rename", out / "final", folder / "final"],
        ["train", "--resume", "--device", "cpu", "--json", "--out", out],
        ["train", scans, "--method", "cse", "--network", "tiny", *SMALL, "--out", folder / "refused"],
    )
    return folder, printed, error


@pytest.mark.slow
def test_a_package_of_its_own_adds_a_method_and_a_network(done):
    folder, printed, error = done
    out = folder / "run"
    assert [code for _, code in printed[:7]] == [0] * 7, error
    listed, text, outcome, gates = (printed[index][0] for index in (1, 2, 3, 4))
    assert "tiny" in json.dumps(json.loads(listed))
    assert "--method.weight" in text
    assert "Weight of the mean entropy" in text
    assert json.loads(outcome)["iterations"] == 4
    assert "1" in json.dumps(json.loads(gates))
    assert len(list((folder / "masks").glob("*.nii.gz"))) == 1
    steps = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [line for line in steps if "entropy" in line]
    assert [line["iteration"] for line in steps] == [1, 2, 3, 4]
    for line in steps:
        assert line["total"] == pytest.approx(line["supervised"] + 0.2 * line["entropy"], rel=1e-5)

    before_resuming, after = (place / "final" / "model.safetensors" for place in (folder, out))
    assert before_resuming.read_bytes() == after.read_bytes()


@pytest.mark.slow
def test_needs_that_a_network_cannot_meet(done):
    """The plain module of the recipe has no attention, which CSE needs; the answer names networks that have it."""
    folder, printed, error = done
    assert printed[7][1] == 3
    assert "fheat: network: tiny has no attention, which method cse needs; use one of fheat_seg, " in error
    assert not (folder / "refused").exists()


def test_without_the_package_nothing_of_it_is_known(tmp_path, capsys):
    assert main(["train", str(tmp_path), "--method", "entropy"]) == 2
    assert "method 'entropy' is unknown: use cse, supervised, mean_teacher, ua_mt" in capsys.readouterr().err
    assert "tiny" not in fheat.list_models()

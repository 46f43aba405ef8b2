"""Start-up: importing fheat is free, and help does not wait for torch.

Times are processor times of a fresh process, the best of five: another process beside it cannot make them much longer.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEASURE = "import time\n{before}\nstart = time.process_time()\n{measured}\nprint(time.process_time() - start)"
EVERYTHING = "import fheat; [getattr(fheat, name) for name in fheat.__all__]"
HELP = "from fheat.cli.main import main; main(['models', '--help'])"


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "measured", "seconds"),
    [
        ("", "import fheat", 0.2),
        ("import torch", EVERYTHING, 2.0),
        ("import torch, contextlib", f"with contextlib.suppress(SystemExit): {HELP}", 1.5),
    ],
    ids=["import", "everything", "help"],
)
def test_start_up_is_quick(before, measured, seconds):
    assert any(float(run(MEASURE.format(before=before, measured=measured))) < seconds for _ in range(5))


@pytest.mark.parametrize("module", ["fheat", "fheat.cli.main"])
def test_importing_imports_nothing_heavy(module):
    heavy = "{'torch', 'numpy', 'scipy', 'matplotlib', 'tyro'}"
    assert run(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)) or 'nothing')") == "nothing"


def test_nibabel_comes_without_pydicom_which_can_still_be_imported():
    pytest.importorskip("pydicom")
    begin = "import sys; from fheat.system.imports import import_nibabel; import_nibabel(); "
    assert run(begin + "print('nibabel' in sys.modules and 'pydicom' not in sys.modules)") == "True"
    assert run(begin + "import pydicom, nibabel; print(pydicom.dcmread.__name__)") == "dcmread"


@pytest.mark.slow
def test_openvino_is_imported_without_the_package_that_reports_its_use():
    pytest.importorskip("openvino")
    begin = "import sys; from fheat.system.imports import import_openvino; ov = import_openvino(); "
    assert run(begin + "print('openvino_telemetry' not in sys.modules and bool(ov.Core().available_devices))") == "True"


def test_openvino_is_imported_and_its_core_made_in_one_place():
    direct = re.compile(
        r"^\s*(import openvino\b|from openvino import)|import_module\(.openvino.\)|\bCore\(\)", re.MULTILINE
    )
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    found = {path.name for path in files if direct.search(path.read_text())}
    assert found == {"imports.py"}

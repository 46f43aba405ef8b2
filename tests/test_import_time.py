"""Start-up time: importing fheat is free, help does not wait for torch."""

import subprocess
import sys
import time

MEASURE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def takes_less(code, limit):
    """Best of at most three: the floor is what the code costs, the rest is the machine."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        if float(done.stdout.split()[-1]) < limit:
            return True
    return False


def test_import_fheat():
    assert takes_less(MEASURE.format("fheat"), 0.2)
    everything = "fheat; [getattr(fheat, name) for name in fheat.__all__]"
    assert takes_less("import torch; " + MEASURE.format(everything), 1.5)


def test_importing_fheat_imports_nothing_heavy():
    code = (
        "import sys, fheat, fheat.cli.main; print({'torch', 'numpy', 'scipy', 'matplotlib', 'tyro'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_help():
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fheat", "--help"], capture_output=True, check=True)
    assert time.perf_counter() - start < 1.0
    code = (
        "import time, torch; start = time.perf_counter()\n"
        "from fheat.cli.main import main\n"
        "try: main(['models', '--help'])\n"
        "except SystemExit: pass\n"
        "print(time.perf_counter() - start)"
    )
    assert takes_less(code, 1.0)

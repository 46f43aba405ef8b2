"""Start-up time: importing fheat is free, help does not wait for torch."""

import subprocess
import sys
import time

MEASURE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(code):
    """Best of three: the floor is what the code costs, the rest is the machine."""
    times = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        times.append(float(done.stdout.split()[-1]))
    return min(times)


def test_import_fheat():
    assert seconds(MEASURE.format("fheat")) < 0.2
    everything = "torch; import fheat; [getattr(fheat, name) for name in fheat.__all__]"
    assert seconds(MEASURE.format(everything)) - seconds(MEASURE.format("torch")) < 1.5


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
    assert seconds(code) < 1.0

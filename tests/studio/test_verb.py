"""`fheat studio` on the command line: what it refuses, and a start that ends on request and leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from fheat.cli.main import main
from tests.studio.conftest import until


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--host", "0.0.0.0"], 3, "add --token"),
        (["--host", "0.0.0.0", "--token", "short"], 3, "is no token"),
        (["--port", "70000"], 3, "cannot be bound"),
        (["--port", "-1"], 2, "--port is -1"),
        (["--queue", "0"], 2, "--queue is 0"),
        (["--time-limit", "0"], 2, "--time-limit is 0"),
        (["--runs", "no-such-folder"], 3, "does not exist"),
        (["--models", "no-such-folder"], 3, "is no folder"),
        (["--predictions", "."], 2, "--predictions belongs to --dataset"),
        (["--nonsense"], 2, "fheat studio --help"),
    ],
)
def test_mistakes_are_one_line(capsys, words, code, says):
    assert main(["studio", "--no-browser", *words]) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "package", ["fastapi", *(pytest.param(one, marks=pytest.mark.slow) for one in ("uvicorn", "starlette"))]
)
def test_a_missing_package_is_named_with_its_remedy(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from fheat.cli.main import main; "
        "sys.exit(main(['studio', '--no-browser', '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == f'fheat: studio: needs the package {package}; pip install "fheat[studio]"\n'


def test_the_service_imports_no_torch():
    """Requests are answered by a light process; only the processes of tasks import torch."""
    code = "import sys, fheat.studio.server; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_starts_answers_and_ends_on_request(tmp_path, number, code):
    command = [sys.executable, "-m", "fheat", "studio", "--no-browser", "--port", "0", "--device", "cpu"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    first, slicer, _ = (program.stdout.readline() for _ in range(3))
    port, token = re.fullmatch(r"fheat studio: http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)\n", first).groups()
    assert slicer.endswith(f"http://127.0.0.1:{port}/s/{token}\n")

    def healthy():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=60) as answer:
            return answer.status == 200

    def reachable():
        try:
            return healthy()
        except OSError:
            return False

    until(reachable)
    assert [path.name[:13] for path in tmp_path.iterdir()] == ["fheat-studio-"]
    program.send_signal(number)
    _, said = program.communicate(timeout=60)
    assert program.returncode == code
    assert said == "fheat: interrupted\n"
    assert list(tmp_path.iterdir()) == []

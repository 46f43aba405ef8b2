import os
import subprocess
import sys
from pathlib import Path

import pytest

import fheat
from fheat.system.processors import processors


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or processors() == 1, reason="nothing to bind to")
def test_a_process_that_is_bound_to_one_processor_has_one():
    one = min(os.sched_getaffinity(0))
    program = f"""
import os
from fheat.system.processors import processors
os.sched_setaffinity(0, {{{one}}})
print(processors())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(said.stdout) == 1


@pytest.mark.parametrize(("cores", "count"), [(None, 1), (12, 12)])
def test_where_the_system_cannot_say_all_processors_count(cores, count, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert processors() == count


def test_the_package_counts_processors_in_one_way():
    files = Path(fheat.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "cpu_count" in path.read_text()] == ["processors.py"]

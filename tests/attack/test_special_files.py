"""Special files: a few calls of the matrix, and the stored one."""

import sys

import pytest
from results import read_result

from tests.attack.special_files import PLACES, SPECIAL, main
from tests.forks import Fork


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the special files are those of Linux")
def test_some_special_files_end_with_documented_codes():
    words = ["--verbs", "evaluate", "data check", "--specials", "FIFO", "socket", "--seconds", "120"]
    code, printed, warned = Fork(main, words).outcome(300)
    assert code == 0, printed + warned


def test_the_stored_matrix_is_whole_and_without_faults():
    results = read_result("special-files-cpu").results
    assert results["faults"] == []
    assert len(results["special"]) >= 8
    assert set(results["special"]) <= set(SPECIAL)
    assert set(results["verbs"]) == {place.verb for place in PLACES}
    for row in results["verbs"].values():
        assert set(row["codes"]) <= {"0", "2", "3", "4"}

"""`fheat cache` shows and removes what is kept."""

import json

from fheat.cli.main import main
from fheat.system.cache import write_cached


def test_entries_are_shown_and_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path / "kept"))
    assert main(["cache"]) == 0
    assert "0 compiled networks, 0.0 MB" in capsys.readouterr().out
    write_cached("openvino-12ab", "k" * 64, bytes(2_000_000))
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert "1 compiled network, 2.0 MB" in said
    assert "openvino      2.0 MB  last used 20" in said
    assert main(["cache", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "kept")
    assert [(row["kind"], row["bytes"]) for row in told["entries"]] == [("openvino-12ab", 2_000_040)]
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 compiled network, 2.0 MB" in capsys.readouterr().out
    assert list((tmp_path / "kept").iterdir()) == []


def test_it_says_so_where_nothing_is_kept(monkeypatch, capsys):
    monkeypatch.setenv("FHEAT_CACHE", "")
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("nothing is kept: the environment variable FHEAT_CACHE is empty")

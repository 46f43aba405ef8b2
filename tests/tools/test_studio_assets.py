"""Fetching the viewer: addresses, checksums and files of packages; nothing is fetched here."""

import base64
import hashlib
import io
import tarfile

import pytest
import studio_assets


def package(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return content.getvalue()


def test_addresses_in_the_registry():
    assert studio_assets.address("fflate", "0.8.3") == "https://registry.npmjs.org/fflate/-/fflate-0.8.3.tgz"
    scoped = studio_assets.address("@niivue/niivue", "0.69.0")
    assert scoped == "https://registry.npmjs.org/@niivue/niivue/-/niivue-0.69.0.tgz"


def test_a_package_of_another_content_is_refused():
    content = b"content of a package"
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    studio_assets.check(content, integrity, "x")
    with pytest.raises(ValueError, match=r"^x: its sha512 is .* and the lock file says "):
        studio_assets.check(content + b" ", integrity, "x")


def test_files_and_licences_of_a_package():
    made = package({"dist/a.js": b"1", "License.md": b"Terms"})
    assert studio_assets.member(made, "dist/a.js") == b"1"
    assert studio_assets.member(made, "a.js") is None
    assert studio_assets.licence(made, "x", "MIT") == "Terms"
    assert studio_assets.licence(package({"a": b""}), "x", "MIT") == "Licence: MIT"
    assert "Niivue" in studio_assets.licence(package({}), studio_assets.VIEWER, "BSD-2-Clause")


def test_what_is_optional_is_not_part_of_the_bundle():
    names = {name for name, *_ in studio_assets.locked()}
    assert studio_assets.VIEWER in names
    assert not any("rollup" in name for name in names)
    assert all(integrity.startswith("sha512-") for *_, integrity in studio_assets.locked())


def test_the_check_says_which_file_is_another_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(studio_assets, "VENDOR", tmp_path)
    monkeypatch.setattr(studio_assets, "ROOT", tmp_path)
    monkeypatch.setattr(studio_assets, "assets", lambda: {"a.js": b"1", "b.txt": b"2"})
    monkeypatch.setattr("sys.argv", ["studio_assets.py"])
    assert studio_assets.main() == 0
    monkeypatch.setattr("sys.argv", ["studio_assets.py", "--check"])
    assert studio_assets.main() == 0
    (tmp_path / "b.txt").write_bytes(b"3")
    capsys.readouterr()
    assert studio_assets.main() == 1
    assert capsys.readouterr().out == "b.txt is not what the lock file says: run tools/studio_assets.py\n"

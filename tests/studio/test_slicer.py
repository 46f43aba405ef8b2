"""The conversation of 3D Slicer's plug-in: requests as its client writes them, answers as it reads them."""

import http.client
import json
from dataclasses import replace
from email.message import Message
from urllib.parse import quote, quote_plus

import numpy as np
import pytest

from fheat import Predictor
from fheat.io import read_nifti, write_nifti
from fheat.io.nrrd import read_nrrd, write_nrrd
from fheat.io.volume import Volume
from tests.studio.conftest import TOKEN, server_for, until

PARAMS = {"result_extension": ".nrrd", "result_dtype": "uint8", "client_id": "user-xyz"}


class Slicer:
    """Sends what the client library of the plug-in sends: no token in a header, forms with a boundary of its own."""

    def __init__(self, port, token=TOKEN):
        self.port, self.prefix = port, f"/s/{token}"

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, self.prefix + path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.headers, content

    def form(self, method, path, fields, files):
        """Send a form as the library writes it: fields first, then files with the full local path as name."""
        boundary, lines = "----------ThIs_Is_tHe_bouNdaRY_$", []
        for key, value in fields.items():
            lines += [f"--{boundary}", f'Content-Disposition: form-data; name="{key}"', "", value]
        parts = ["\r\n".join(lines).encode()] if lines else []
        for key, (name, content) in files.items():
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"; filename="{name}"\r\n'
            parts.append(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + content)
        parts += [f"--{boundary}--".encode(), b""]
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self.ask(method, path, b"\r\n".join(parts), headers)

    def json(self, method, path):
        status, _, content = self.ask(method, path)
        assert status == 200, content
        return json.loads(content)


def parts_of(headers, content):
    """Split a form by its boundary, as the client does, which knows no chunks."""
    assert int(headers["Content-Length"]) == len(content)
    assert "Transfer-Encoding" not in headers
    kind = Message()
    kind["Content-Type"] = headers["Content-Type"]
    assert kind.get_content_type() == "multipart/form-data"
    found = {}
    for part in content.split(b"--" + kind.get_param("boundary").encode())[1:-1]:
        head, _, body = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = head.decode().split('name="')[1].split('"')[0]
        found[name] = head.decode(), body.removesuffix(b"\r\n")
    return found


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    return tmp_path_factory.mktemp("labels")


@pytest.fixture(scope="module")
def server(settings, launcher, labels):
    with server_for(replace(settings, port=0, labels=labels), launcher) as found:
        yield found


@pytest.fixture(scope="module")
def slicer(server):
    return Slicer(server[0])


def test_the_conversation(slicer, model, scan_file, labels, tmp_path):
    assert slicer.json("GET", "/auth/") == {"enabled": False}
    info = slicer.json("GET", "/info/")
    assert info["name"] == "fheat"
    assert "config" not in info
    assert info["models"]["mini"]["type"] == "segmentation"
    assert info["models"]["mini"]["labels"] == {"chamber": 1}
    assert info["models"]["mini"]["description"]
    assert info["trainers"] == {}
    assert slicer.ask("GET", "/train/?check_if_running=true")[0] == 404

    image = quote_plus("MRHead 1: left")
    name = "C:\\Users\\jane\\AppData\\Local\\Temp\\Slicer\\tmp0a1b.nii.gz"
    files = {"file": (name, scan_file.read_bytes())}
    assert slicer.json("GET", "/auth/") == {"enabled": False}
    status, _, content = slicer.form("PUT", f"/datastore/?image={image}", {"params": json.dumps(PARAMS)}, files)
    assert status == 200, content
    assert json.loads(content) == {"image": "MRHead 1: left"}
    assert slicer.json("GET", "/datastore/") == {"total": 1, "completed": 0, "label_tags": {"final": 0}}

    params = {**PARAMS, "largest_component": True, "preset": "own"}
    status, headers, content = slicer.form("POST", f"/infer/mini?image={image}", {"params": json.dumps(params)}, {})
    assert status == 200, content
    parts = parts_of(headers, content)
    assert list(parts) == ["params", "image"]
    assert "filename" not in parts["params"][0]
    assert json.loads(parts["params"][1])["label_names"] == {"chamber": 1}
    assert 'filename="mask.nrrd"' in parts["image"][0]
    (tmp_path / "mask.nrrd").write_bytes(parts["image"][1])
    mask = read_nrrd(tmp_path / "mask.nrrd")
    expected = Predictor(model, device="cpu", runtime="torch", largest_component=True).segment(scan_file)
    assert np.array_equal(mask.data, expected.data)
    assert np.allclose(mask.affine, expected.affine, atol=1e-6)

    drawn = mask.data.copy()
    drawn[:3] = 1
    write_nrrd(Volume(drawn, mask.affine), tmp_path / "label.nrrd")
    files = {"label": ("/tmp/Slicer-jane/label.nrrd", (tmp_path / "label.nrrd").read_bytes())}
    fields = {"params": json.dumps({"label_info": [{"name": "chamber", "idx": 1}], "client_id": "user-xyz"})}
    status, _, content = slicer.form("PUT", f"/datastore/label?image={image}", fields, files)
    assert (status, json.loads(content)) == (200, {"image": "MRHead 1: left", "label": "MRHead 1: left"})
    kept = read_nifti(labels / "MRHead_1__left.nii.gz")
    assert np.array_equal(kept.data, drawn)
    assert slicer.json("GET", "/datastore/")["completed"] == 1
    everything = slicer.json("GET", "/datastore/?output=all")["objects"]["MRHead 1: left"]
    assert "final" in everything["labels"]
    status, headers, content = slicer.ask("GET", f"/datastore/label?label={image}&tag=final")
    assert status == 200
    assert "attachment" in headers["Content-Disposition"]
    (tmp_path / "again.nii.gz").write_bytes(content)
    assert np.array_equal(read_nifti(tmp_path / "again.nii.gz").data, drawn)
    assert slicer.ask("GET", f"/datastore/image?image={image}")[0] == 200


def test_a_scan_may_come_with_the_question(slicer, scan_file, tmp_path):
    files = {"file": ("/home/jane/scan.nii.gz", scan_file.read_bytes())}
    status, headers, content = slicer.form("POST", "/infer/mini?image=other&output=image", {}, files)
    assert status == 200
    assert headers["Content-Type"] == "application/octet-stream"
    (tmp_path / "mask.nrrd").write_bytes(content)
    assert read_nrrd(tmp_path / "mask.nrrd").data.shape == read_nifti(scan_file).data.shape
    status, _, content = slicer.form("POST", "/infer/mini?image=other&output=json", {}, {})
    assert json.loads(content)["label_names"] == {"chamber": 1}
    assert slicer.form("POST", "/infer/mini?image=other&output=dicom_seg", {}, {})[0] == 409


def test_what_is_not_there_is_404(slicer):
    for method, path in (
        ("GET", "/train/"),
        ("GET", "/train/?check_if_running=true"),
        ("GET", "/session/a1"),
        ("PUT", "/session/"),
        ("POST", "/activelearning/random"),
        ("GET", "/datastore/image?image=none"),
        ("GET", "/datastore/label?label=none&tag=final"),
        ("GET", "/unknown/"),
    ):
        assert slicer.ask(method, path)[0] == 404, path
    assert slicer.form("POST", "/infer/mini?image=none", {"params": "{}"}, {})[0] == 404
    assert slicer.form("POST", "/infer/none?image=none", {"params": "{}"}, {})[0] == 404


def test_a_wrong_token_is_refused_everywhere(server):
    for token in ("wrong", "", f"{TOKEN}x", TOKEN[:-1], quote("../s", safe="")):
        for path in ("/auth/", "/info/", "/datastore/"):
            assert Slicer(server[0], token).ask("GET", path)[0] in (401, 404)


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({}, {}),
        ({"params": "not json"}, {"file": ("a.nii", b"x")}),
        ({"params": "[1]"}, {"file": ("a.nii", b"x")}),
        ({"params": "{}"}, {"file": ("a.exe", b"x")}),
        ({"params": "{}"}, {"file": ("a.nii", b"x")}),
        ({"params": "{}"}, {"file": ("", b"x")}),
        ({"params": "[" * 50_000}, {"file": ("a.nii", b"x")}),
        ({"params": "x" * 70_000}, {"file": ("a.nii", b"x")}),
        ({f"field{number}": "x" for number in range(20)}, {"file": ("a.nii", b"x")}),
        ({}, {f"file{number}": ("a.nii", b"x") for number in range(5)}),
    ],
)
def test_malformed_forms_are_refused_in_one_line(slicer, server, fields, files):
    before = len(list((server[1].folder / "scans").iterdir()))
    status, _, content = slicer.form("PUT", "/datastore/?image=bad", fields, files)
    assert 400 <= status < 500, content
    assert json.loads(content).keys() == {"error", "remedy"}
    assert len(list((server[1].folder / "scans").iterdir())) == before


def test_bodies_that_are_no_forms_are_refused(slicer):
    for headers in ({}, {"Content-Type": "multipart/form-data"}, {"Content-Type": "multipart/form-data; boundary=x"}):
        assert 400 <= slicer.ask("PUT", "/datastore/?image=bad", b"\r\n--x\r\nnonsense", headers)[0] < 500


def test_a_label_elsewhere_is_refused(slicer, scan_file, tmp_path):
    slicer.form("PUT", "/datastore/?image=place", {}, {"file": ("a.nii.gz", scan_file.read_bytes())})
    scan = read_nifti(scan_file)
    write_nifti(Volume(np.ones(scan.data.shape, np.uint8), np.eye(4)), tmp_path / "label.nii")
    files = {"label": ("label.nii", (tmp_path / "label.nii").read_bytes())}
    status, _, content = slicer.form("PUT", "/datastore/label?image=place", {}, files)
    assert status == 422
    assert "of the label is" in json.loads(content)["error"]
    assert slicer.form("PUT", "/datastore/label?image=place", {}, {})[0] == 400


def test_a_client_that_leaves_cancels_its_job(slicer, server, large_file):
    port, service = server
    slicer.form("PUT", "/datastore/?image=large", {}, {"file": ("a.nii.gz", large_file.read_bytes())})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = b'--x\r\nContent-Disposition: form-data; name="params"\r\n\r\n{}\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", f"/s/{TOKEN}/infer/endless?image=large", body, headers)
    until(lambda: len(service.jobs) == 1 and service.jobs.summaries()[-1]["done"] > 0)
    connection.close()
    until(lambda: len(service.jobs) == 0)
    assert service.jobs.summaries()[-1]["state"] == "cancelled"

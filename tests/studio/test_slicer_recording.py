"""A conversation of MONAI Label's own client library, recorded once and answered again in every test run.

The recording holds the bytes that the library sent and what it returned to its caller. To record it anew:

    pip install --no-deps --target CLIENT monailabel==0.8.5
    FHEAT_RECORD=1 PYTHONPATH=CLIENT pytest tests/studio/test_slicer_recording.py

The library needs Python 3.12 or older, because it imports the module cgi. Where it can be imported, it is run as well.
"""

import base64
import http.client
import importlib.util
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fheat.io import read_nifti
from fheat.io.nrrd import read_nrrd, write_nrrd
from fheat.io.volume import Volume
from tests.studio.conftest import TOKEN, server_for
from tests.studio.test_slicer import parts_of

RECORDING = Path(__file__).with_name("slicer_recording.json")
CHANGING = {"latencies": dict, "version": str}
"""Fields of answers that differ from run to run, and their types."""

CALLS = ("auth_enabled", "info", "train_status", "upload_image", "infer", "save_label", "datastore", "download_label")
"""What the plug-in of 3D Slicer asks its client for, from connecting to a corrected label."""


@pytest.fixture
def server(settings, launcher, tmp_path):
    with server_for(replace(settings, port=0, labels=tmp_path / "labels"), launcher) as (port, _):
        yield port


def steady(answer):
    """Return an answer without other models, and with the types of what differs from run to run."""
    if not isinstance(answer, dict):
        return answer
    assert all(isinstance(answer[key], kind) for key, kind in CHANGING.items() if key in answer)
    if "models" in answer:
        answer = {**answer, "models": {"mini": answer["models"]["mini"]}, "labels": "chamber" in answer["labels"]}
    return {key: CHANGING[key].__name__ if key in CHANGING else steady(value) for key, value in answer.items()}


def replayed(port, sent):
    """Send recorded bytes to the server that listens now, and return the answer as the client reads it."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(sent.replace(b"Host: 127.0.0.1:PORT", f"Host: 127.0.0.1:{port}".encode()))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.headers, answer.read()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library closes no connection
@pytest.mark.filterwarnings("ignore:'cgi' is deprecated")
@pytest.mark.skipif(importlib.util.find_spec("monailabel") is None, reason="needs monailabel's client")
def test_the_library_itself_is_content(server, scan_file, tmp_path, monkeypatch):
    from monailabel.client import MONAILabelClient

    monkeypatch.chdir(tmp_path)
    Path("scan.nii.gz").write_bytes(scan_file.read_bytes())
    exchanges = []
    _listen(monkeypatch, exchanges, server)
    client = MONAILabelClient(f"http://127.0.0.1:{server}/s/{TOKEN}", str(tmp_path), "user-xyz")
    calls = []

    def ask(name, *arguments, **options):
        exchanges.clear()
        found = getattr(client, name)(*arguments, **options)
        calls.append({"call": name, "requests": list(exchanges)})
        return found

    def said(found):
        calls[-1]["returned"] = steady(found)
        return found

    assert ask("auth_enabled") is False
    said({"enabled": False})
    assert said(ask("info"))["models"]["mini"]["labels"] == {"chamber": 1}
    assert said(ask("train_status", check_if_running=True)) is False
    assert said(ask("upload_image", "scan.nii.gz", "MRHead 1: left")) == {"image": "MRHead 1: left"}
    file, params = ask("infer", "mini", "MRHead 1: left", {"result_extension": ".nrrd", "result_dtype": "uint8"})
    assert said(params)["label_names"] == {"chamber": 1}
    mask = read_nrrd(file)
    drawn = mask.data.copy()
    drawn[:3] = 1
    write_nrrd(Volume(drawn, mask.affine), tmp_path / "label.nrrd")
    info = {"label_info": [{"name": "chamber", "idx": 1}]}
    said(ask("save_label", "MRHead 1: left", "label.nrrd", params=info))
    assert said(ask("datastore"))["objects"]["MRHead 1: left"]["labels"]
    kept = read_nifti(ask("download_label", "MRHead 1: left", "final")).data
    said(None)
    assert np.array_equal(kept, drawn)
    assert [one["call"] for one in calls] == list(CALLS)
    if os.environ.get("FHEAT_RECORD"):
        voxels = [int(mask.data.sum()), int(kept.sum())]
        recording = {"library": "monailabel 0.8.5", "voxels": voxels, "calls": calls}
        RECORDING.write_text(json.dumps(recording, indent=1) + "\n")


def _listen(monkeypatch, exchanges, port):
    """Keep what the standard library sends for the client, and the status of each answer."""
    send, begin = http.client.HTTPConnection.send, http.client.HTTPResponse.begin

    def sending(connection, data):
        connection.kept = getattr(connection, "kept", b"") + bytes(data)
        exchanges[:] = [one for one in exchanges if one["of"] is not connection]
        head, blank, body = connection.kept.partition(b"\r\n\r\n")
        text = (head + blank).decode().replace(f"127.0.0.1:{port}", "127.0.0.1:PORT")
        exchanges.append({"of": connection, "head": text, "body": base64.b64encode(body).decode()})
        send(connection, data)

    def beginning(response):
        begin(response)
        exchanges[-1].pop("of")
        exchanges[-1]["status"] = response.status

    monkeypatch.setattr(http.client.HTTPConnection, "send", sending)
    monkeypatch.setattr(http.client.HTTPResponse, "begin", beginning)


def test_the_recorded_conversation_is_answered(server, tmp_path):
    recording = json.loads(RECORDING.read_text())
    assert recording["library"] == "monailabel 0.8.5"
    assert [one["call"] for one in recording["calls"]] == list(CALLS)
    masks = []
    for one in recording["calls"]:
        for request in one["requests"]:
            sent = request["head"].encode() + base64.b64decode(request["body"])
            status, headers, content = replayed(server, sent)
            assert status == request["status"], (one["call"], content)
            assert int(headers["Content-Length"]) == len(content)
        if one["call"] == "infer":
            parts = parts_of(headers, content)
            assert steady(json.loads(parts["params"][1])) == one["returned"]
            (tmp_path / "mask.nrrd").write_bytes(parts["image"][1])
            masks.append(read_nrrd(tmp_path / "mask.nrrd").data)
        elif one["call"] == "download_label":
            (tmp_path / "label.nii.gz").write_bytes(content)
            masks.append(read_nifti(tmp_path / "label.nii.gz").data)
        elif one["call"] != "train_status":
            assert steady(json.loads(content)) == one["returned"]
    mask, label = masks
    assert [int(mask.sum()), int(label.sum())] == recording["voxels"]
    assert np.array_equal(label[3:], mask[3:])
    assert label[:3].all()


def test_a_recording_holds_nothing_of_the_machine_that_made_it():
    bodies = b"".join(
        base64.b64decode(request["body"]) + request["head"].encode()
        for one in json.loads(RECORDING.read_text())["calls"]
        for request in one["requests"]
    )
    assert b"/tmp" not in bodies
    assert len(bodies) < 2**18

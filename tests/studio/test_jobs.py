"""Jobs: the same masks as without the service, one at a time, ended when asked, by time, by death and by age."""

import os
import signal
import time
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from fheat import Predictor, evaluate
from fheat.io import read_nifti, write_nifti
from fheat.io.volume import Volume
from fheat.studio.settings import Limits
from fheat.studio.worker import FORKS
from tests.studio.conftest import client_of, ended, segmented, sent, until
from tests.studio.test_uploads import series, zipped

__all__ = ["series"]


@pytest.fixture(scope="module")
def client(settings, launcher):
    with client_of(settings, launcher) as client:
        yield client


@pytest.fixture(scope="module")
def done(client, scan_file):
    """A job that is done, with its uncertainty."""
    return segmented(client, scan_file, uncertainty=True)


def downloaded(client, address, tmp_path):
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    (tmp_path / "file.nii.gz").write_bytes(answer.content)
    return read_nifti(tmp_path / "file.nii.gz")


def begun(client, file, model="endless", **options):
    """Start a job on a new scan and return it."""
    scan = sent(client, file)
    answer = client.post("/api/jobs", json={"scan": scan["scan"], "model": model, **options})
    assert answer.status_code == 202, answer.text
    return answer.json()


def running(client, number):
    """Wait until a job has done its first windows."""
    return until(lambda: (job := client.get(f"/api/jobs/{number}").json())["done"] > 0 and job)


def children(launcher):
    """Return the processes of the tasks that run."""
    starter = launcher._hosts[0]._process.pid
    return [int(pid) for pid in Path(f"/proc/{starter}/task/{starter}/children").read_text().split()]


def test_the_mask_is_that_of_the_predictor(client, done, model, scan_file, tmp_path):
    mask = downloaded(client, done["result"]["mask"], tmp_path)
    expected = Predictor(model, device="cpu", runtime="torch").segment(scan_file)
    assert 0 < expected.data.sum() < expected.data.size
    assert np.array_equal(mask.data, expected.data)
    assert np.allclose(mask.affine, expected.affine, atol=1e-6)
    assert done["result"]["classes"] == {"chamber": 1}
    voxel = abs(np.linalg.det(mask.affine[:3, :3])) / 1000
    assert done["result"]["volumes_ml"]["chamber"] == pytest.approx(int(mask.data.sum()) * voxel, abs=1e-3)
    assert done["done"] == done["of"] > 0
    assert client.get(f"/api/jobs/{done['job']}/mask.dcm").status_code == 409


def test_uncertainty_is_the_entropy_of_the_mean_probabilities(client, done, model, scan_file, tmp_path):
    found = downloaded(client, done["result"]["uncertainty"], tmp_path).data
    predictor = Predictor(model, device="cpu", runtime="torch")
    scan = predictor.scan(read_nifti(scan_file))  # its grid is that of the scan, with other directions of the axes
    mean = predictor.sliding(None)(scan.planes(0, 0, scan.shape[0])).double().numpy()
    expected = -(mean * np.log(mean)).sum(axis=0) / log(2)
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.allclose(found, expected[::-1], atol=1e-5)


@pytest.mark.slow
def test_a_job_without_uncertainty_has_none(client, scan_file):
    job = segmented(client, scan_file)
    assert job["result"]["uncertainty"] is None
    assert client.get(f"/api/jobs/{job['job']}/uncertainty.nii.gz").status_code == 409
    assert client.delete(f"/api/jobs/{job['job']}").json()["state"] == "done"
    assert client.get(f"/api/jobs/{job['job']}").status_code == 404
    assert not (client.service.folder / "jobs" / str(job["job"])).exists()


@pytest.mark.slow
def test_options_reach_the_predictor(client, model, scan_file, tmp_path):
    job = segmented(client, scan_file, preset="fast", largest_component=True)
    predictor = Predictor(model, device="cpu", runtime="torch", largest_component=True)
    predictor.windows = predictor.windows.fast()
    assert np.array_equal(downloaded(client, job["result"]["mask"], tmp_path).data, predictor.segment(scan_file).data)
    for wrong in ({"preset": "slow"}, {"uncertainty": "maybe"}, {"scan": 7}):
        body = {"scan": "a", "model": "mini", **wrong}
        assert client.post("/api/jobs", json=body).status_code == 422


@pytest.mark.slow
def test_a_dicom_series_gives_a_seg(client, series, tmp_path):
    highdicom = pytest.importorskip("highdicom")
    files, data = series
    (tmp_path / "a.zip").write_bytes(zipped(files.items()))
    scan = sent(client, tmp_path / "a.zip", "a.zip")
    started = client.post("/api/jobs", json={"scan": scan["scan"], "model": "mini"}).json()
    job = ended(client, started["job"])
    assert job["state"] == "done", job
    mask = downloaded(client, job["result"]["mask"], tmp_path)
    assert mask.data.shape == data.shape
    answer = client.get(job["result"]["seg"])
    assert answer.headers["content-type"] == "application/dicom"
    (tmp_path / "mask.dcm").write_bytes(answer.content)
    seg = highdicom.seg.segread(tmp_path / "mask.dcm")
    assert seg.PatientID == "phantom"
    assert int(seg.pixel_array.sum()) == int(mask.data.sum())


def test_a_reference_is_compared(client, done, tmp_path):
    mask = downloaded(client, done["result"]["mask"], tmp_path)
    other = np.roll(mask.data, 2, axis=0)
    write_nifti(Volume(other.astype(np.int16), mask.affine), tmp_path / "reference.nii")
    address = f"/api/jobs/{done['job']}/reference?name=reference.nii"
    answer = client.put(address, content=(tmp_path / "reference.nii").read_bytes())
    assert answer.status_code == 200, answer.text
    expected = evaluate(mask.data, other, mask.spacing)
    for name in ("dice", "jaccard", "hd95", "asd"):
        assert answer.json()["scores"]["chamber"][name] == pytest.approx(expected[name], rel=1e-6)
    assert answer.json()["unit"] == "mm"
    where = downloaded(client, answer.json()["difference"], tmp_path).data
    assert np.array_equal(where, (mask.data > 0) + 2 * (other > 0))
    shifted = Volume(other, mask.affine @ np.diag([1, 1, 1.1, 1]))
    write_nifti(shifted, tmp_path / "reference.nii")
    refused = client.put(address, content=(tmp_path / "reference.nii").read_bytes())
    assert refused.status_code == 422
    assert "spacing of the reference" in refused.json()["error"]
    assert client.put(address, content=b"").status_code == 400
    assert client.put(address.replace(".nii", ".zip"), content=b"x").status_code == 415
    assert not list((client.service.folder / "jobs" / str(done["job"])).glob("sent*"))
    assert not list((client.service.folder / "jobs" / str(done["job"])).glob("read*"))


def test_a_corrected_mask_keeps_its_voxels_alone(settings, launcher, scan_file, tmp_path):
    labels = tmp_path / "labels"
    with client_of(replace(settings, labels=labels), launcher) as client:
        job = segmented(client, scan_file)
        mask = downloaded(client, job["result"]["mask"], tmp_path)
        drawn = mask.data.copy()
        drawn[3:6, 3:6, 3:6] = 1 - drawn[3:6, 3:6, 3:6]
        address = f"/api/jobs/{job['job']}/corrected"
        for ending, count in ((".nii", 1), (".nii.gz", 2)):  # the file may be packed, and lie anywhere
            write_nifti(Volume(drawn, np.eye(4)), tmp_path / f"drawn{ending}")
            answer = client.put(address, content=(tmp_path / f"drawn{ending}").read_bytes())
            assert answer.status_code == 200, answer.text
            assert answer.json()["changed_voxels"] == 27
            voxel = abs(np.linalg.det(mask.affine[:3, :3])) / 1000
            assert answer.json()["volumes_ml"]["chamber"] == pytest.approx(int(drawn.sum()) * voxel, abs=1e-3)
            kept = downloaded(client, answer.json()["label"], tmp_path)
            assert np.array_equal(kept.data, drawn)
            assert np.array_equal(kept.affine, mask.affine)
            assert len(list(labels.iterdir())) == count
        assert sorted(path.name for path in labels.iterdir()) == ["scan-2.nii.gz", "scan.nii.gz"]
        assert np.array_equal(read_nifti(labels / "scan.nii.gz").data, drawn)
        for wrong, says in ((drawn[1:], "has shape"), (2 * drawn, "classes go up to 1"), (drawn + 0.5, "no label")):
            write_nifti(Volume(wrong, np.eye(4)), tmp_path / "wrong.nii")
            refused = client.put(address, content=(tmp_path / "wrong.nii").read_bytes())
            assert refused.status_code == 422
            assert says in refused.json()["error"]
        assert len(list(labels.iterdir())) == 2


def test_timing_compares_kept_with_retired_transforms(client, scan_file):
    scan = sent(client, scan_file)
    started = client.post("/api/models/mini/timing", json={"scan": scan["scan"]})
    assert started.status_code == 202
    job = ended(client, started.json()["job"])
    assert job["state"] == "done", job
    assert job["result"]["same_mask"] is True
    assert job["result"]["before_seconds"] > 0
    assert job["result"]["after_seconds"] > 0
    assert client.get(f"/api/jobs/{job['job']}/mask.nii.gz").status_code == 409


def test_other_channels_and_unknown_things_are_refused(client, tmp_path):
    write_nifti(Volume(np.zeros((20, 20, 20, 2), np.int16), np.eye(4)), tmp_path / "two.nii")
    scan = sent(client, tmp_path / "two.nii")
    assert scan["channels"] == 2
    answer = client.post("/api/jobs", json={"scan": scan["scan"], "model": "mini"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "the scan has 2 channels and the model takes 1"
    assert client.post("/api/jobs", json={"scan": scan["scan"], "model": "none"}).status_code == 404
    assert client.get("/api/jobs/999").status_code == 404
    assert client.get("/api/jobs/0").status_code == 422


def test_what_the_predictor_refuses_is_a_failed_job_with_its_line(client, tmp_path):
    write_nifti(Volume(np.zeros((20, 20, 20), np.int16), np.diag([900.0, 900, 900, 1])), tmp_path / "vast.nii")
    job = ended(client, begun(client, tmp_path / "vast.nii", "mini")["job"])
    assert job["state"] == "failed"
    assert job["error"].keys() == {"error", "remedy"}
    assert "\n" not in job["error"]["error"]
    assert str(client.service.folder) not in str(job["error"])


def test_one_job_runs_and_a_full_queue_is_refused(settings, launcher, large_file, scan_file):
    with client_of(replace(settings, limits=Limits(queue=2)), launcher) as client:
        first = running(client, begun(client, large_file)["job"])
        assert first["state"] == "running"
        assert first["of"] > 100_000
        assert first["seconds_left"] > 0
        waiting = [begun(client, scan_file, "mini") for _ in range(2)]
        assert [job["position"] for job in waiting] == [1, 2]
        scan = sent(client, scan_file)
        answer = client.post("/api/jobs", json={"scan": scan["scan"], "model": "mini"})
        assert answer.status_code == 503
        assert "2 jobs wait" in answer.json()["error"]
        assert answer.headers["retry-after"]
        assert client.delete(f"/api/jobs/{waiting[0]['job']}").json()["state"] == "cancelled"
        assert client.get(f"/api/jobs/{waiting[1]['job']}").json()["position"] == 1
        assert client.delete(f"/api/jobs/{first['job']}").json()["state"] == "cancelled"
        assert ended(client, waiting[1]["job"])["state"] == "done"
        assert client.get(f"/api/jobs/{first['job']}/mask.nii.gz").status_code == 409


@pytest.mark.skipif(not FORKS, reason="processes are looked up in /proc")
def test_a_cancelled_job_leaves_no_process(client, launcher, large_file):
    job = running(client, begun(client, large_file)["job"])
    assert len(children(launcher)) == 1
    client.delete(f"/api/jobs/{job['job']}")
    until(lambda: not children(launcher))


def test_deleting_a_scan_cancels_its_job(client, large_file):
    job = running(client, begun(client, large_file)["job"])
    assert client.delete(f"/api/scans/{job['scan']}").status_code == 200
    assert client.get(f"/api/jobs/{job['job']}").json()["state"] == "cancelled"


@pytest.mark.skipif(not FORKS, reason="processes are looked up in /proc")
def test_a_killed_process_fails_its_job_and_the_service_goes_on(client, launcher, large_file, scan_file):
    job = running(client, begun(client, large_file)["job"])
    os.kill(children(launcher)[0], signal.SIGKILL)
    failed = ended(client, job["job"])
    assert failed["state"] == "failed"
    assert failed["error"]["error"] == "its process ended with signal 9"
    assert segmented(client, scan_file)["state"] == "done"


def test_a_job_has_limited_time(settings, launcher, large_file, scan_file):
    with client_of(replace(settings, limits=Limits(seconds=0.5)), launcher) as client:
        job = ended(client, begun(client, large_file)["job"])
        assert job["state"] == "failed"
        assert job["error"]["error"] == "it took longer than 0.5 s"


@pytest.mark.slow
def test_results_and_scans_are_deleted_after_a_while(settings, launcher, large_file, scan_file):
    with client_of(replace(settings, limits=Limits(keep=3600)), launcher) as client:
        job = segmented(client, scan_file)
        busy = running(client, begun(client, large_file)["job"])

        def expire(seconds):
            client.portal.call(client.service.expire, time.monotonic() + seconds)

        expire(3500)
        assert client.get(f"/api/jobs/{job['job']}").status_code == 200
        assert client.get(f"/api/scans/{job['scan']}").status_code == 200
        expire(3700)
        assert client.get(f"/api/jobs/{job['job']}").status_code == 404
        assert client.get(f"/api/scans/{job['scan']}").status_code == 404
        assert client.get(f"/api/jobs/{busy['job']}").json()["state"] == "running"
        assert client.get(f"/api/scans/{busy['scan']}").status_code == 200
        kept = {path.name for part in ("scans", "jobs") for path in (client.service.folder / part).iterdir()}
        assert kept == {str(busy["job"]), busy["scan"]}


@pytest.mark.slow
def test_logs_name_no_file_and_no_patient(settings, launcher, series, capfd, tmp_path):
    files, _ = series
    (tmp_path / "a.zip").write_bytes(zipped(files.items()))
    with client_of(settings, launcher) as client:
        scan = sent(client, tmp_path / "a.zip", "Doe_Jane.zip")
        number = client.post("/api/jobs", json={"scan": scan["scan"], "model": "mini"}).json()["job"]
        assert ended(client, number)["state"] == "done"
        client.put("/api/scans?name=Doe_Jane.nii", content=b"nonsense")
    said = "".join(capfd.readouterr())
    assert f"job {number} done" in said
    for word in ("Doe", "hantom", ".nii", ".zip", scan["scan"]):
        assert word not in said


def test_everything_is_private_and_removed_at_the_end(settings, launcher, scan_file):
    with client_of(settings, launcher) as client:
        segmented(client, scan_file)
        folder = client.service.folder
        for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            assert path.stat().st_mode & 0o777 == 0o700, path
    assert not folder.exists()

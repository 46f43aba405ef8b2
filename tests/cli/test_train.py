"""`fheat train` with input that cannot be used: one line that says what to do, and nothing is touched."""

import json
import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest
import torch

from fheat.cli.main import UsageError, main
from fheat.cli.train import _Screen, _settings, picture
from fheat.data.phantom import write_phantoms
from fheat.io import Volume, read_nifti, write_nifti
from fheat.system.errors import BadInput
from fheat.training.checkpoints import flattened
from fheat.training.observers import Look
from fheat.training.run_folder import CLAIMS
from fheat.training.settings import OptimiserSettings
from fheat.training.settings_sources import dotted_names, make_settings, read_settings, sections, to_toml
from fheat.training.step import Step
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, changed, settings_of

pytestmark = pytest.mark.usefixtures("without_report")

SMALL = ["--patch-size", "32", "32", "32", "--iterations", "2", "--warm-up", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "scans"
    write_phantoms(folder, 4, test=0, shape=(40, 36, 34))
    return folder


@pytest.fixture
def scans(phantoms, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(phantoms, tmp_path / "scans")


def test_the_help_has_every_setting_with_its_default(capsys):
    """From the sections themselves: no option and no default is written down a second time."""
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = re.sub(r"[│╭╮╰╯─]|\s", "", capsys.readouterr().out)
    for dotted in dotted_names():
        if dotted != "data.folder":
            assert f"--{dotted.replace('_', '-')}" in text, dotted
    for section, kind in sections().items():
        for name, field in kind.model_fields.items():
            if isinstance(field.default, int | float | str) and not isinstance(field.default, bool):
                described = "".join((field.description or "").split())
                assert f"{described}(default:{field.default})" in text or field.description is None, (section, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--network.mixer", "gelu"], "network.mixer", "gelu"),
        (["--optimiser.clip", "none"], "optimiser.clip", None),
        (["--optimiser.clip=none"], "optimiser.clip", None),
        (["--labelled", "3"], "data.labelled", 3),
        (["--data.labelled", "3"], "data.labelled", 3),
        (["--method", "ua_mt", "--method.passes", "4"], "method.passes", 4),
        (["--preprocessing.intensity", "none"], "preprocessing.intensity", "none"),
        (["--intensity", "window", "--window", "-125", "275"], "preprocessing.window", [-125.0, 275.0]),
        (["--probe-at", "0", "5"], "research.probe_at", [0, 5]),
        (["--optimiser.deterministic"], "optimiser.deterministic", True),
    ],
)
def test_every_setting_is_an_option(tmp_path, words, name, value):
    _, settings = _settings([str(tmp_path), *words])
    assert flattened(settings)[name] == value
    (tmp_path / "c.toml").write_text(to_toml(settings))
    assert read_settings(tmp_path / "c.toml") == settings
    assert _settings(["--config", str(tmp_path / "c.toml")])[1] == settings
    other = _settings(["--config", str(tmp_path / "c.toml"), "--seed", "5", str(tmp_path / "elsewhere")])[1]
    assert other == changed(settings, seed=5, data=str(tmp_path / "elsewhere"))


def test_options_win_over_the_file_whatever_the_file_says(tmp_path):
    """Also where the file would not fit by itself, and where an option repeats a default."""
    (tmp_path / "c.toml").write_text(
        '[data]\nfolder = "x"\npatch_size = [30, 30, 30]\n[method]\nramp = 3\n[schedule]\niterations = 20\n'
    )
    config = ["--config", str(tmp_path / "c.toml")]
    settings = _settings([*config, "--method", "supervised"])[1]
    assert (settings.method.name, settings.data.patch_size) == ("supervised", (30, 30, 30))
    assert (
        _settings([*config, "--patch-size", "32", "32", "32", "--iterations", "16000"])[1].schedule.iterations == 16_000
    )
    assert _settings([*config, "--method", "ua_mt", "--labelled", "none"])[1].method.ramp == 3
    with pytest.raises(UsageError, match=r"leave out --schedule\.warm-up"):
        _settings(["--resume", "--warm-up", "500"])


@pytest.mark.parametrize("option", ["--network.instrument", "--probe-at", "--research.probe-at", "--allow"])
def test_an_option_that_takes_several_values_takes_one_at_least(option):
    """Without this, gates that were asked for would be left out silently."""
    for words in ([option], [option, "--batch", "4"]):
        with pytest.raises(UsageError, match=f"{option} takes one value or more: give them, or leave"):
            _settings(["scans", *words])
    assert _settings(["scans", "--network.instrument", "stem", "--batch", "4"])[1].network.instrument == ("stem",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'optimiser = "adamw"\nlearning_rate = 0.1',
            "field optimiser: is a section and takes a table",
        ),
        ("network = 5", "field network: is a section"),
        ("method = 5", "field method: is a section"),
        ('network_options = "x"', "field network_options: takes a table of options"),
        ('[preprocessing]\norientation = "XYZ"', "orientation"),
    ],
)
def test_files_that_are_not_settings_are_refused_in_one_line(phantoms, tmp_path, capsys, text, says):
    (tmp_path / "c.toml").write_text(f"{text}\n")
    refused(capsys, [phantoms, "--config", tmp_path / "c.toml", "--out", tmp_path / "run"], 3, "c.toml", says)


def test_a_wrong_value_is_said_plainly(phantoms, capsys):
    assert refused(capsys, [phantoms, "--batch", "x"], 2).startswith("fheat: --batch takes a whole number, not 'x'")


def test_without_a_terminal_a_line_a_minute(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("fheat.cli.train.time.monotonic", lambda: clock[0])
    screen = _Screen(settings_of(data="x"))
    for second in range(0, 200, 25):
        clock[0] = float(second)
        screen.show(Look(second, 1000, 2.5, {"total": 0.5}, {"dec1": 0.3}, 0.75))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "75 of 1,000  2.5 it/s  total 0.500  best Dice 0.7500"
    assert [line.split()[0] for line in lines] == ["75", "150"]


def test_a_run_shorter_than_its_warm_up_says_so(phantoms, tmp_path, capsys):
    words = [*SMALL[:6], "--warm-up", "2", "--device", "cpu", "--labelled", "1"]
    assert main(["train", str(phantoms), *words, "--out", str(tmp_path / "run")]) == 0
    error = capsys.readouterr().err
    assert (
        error == "fheat: note: the learning rate rises over 2 iterations and the run has 2: give a smaller --warm-up\n"
    )


def first_training_scan(scans):
    order = json.loads((scans / "splits.json").read_text())
    return next(name for name in order["order"] if name not in order["validation"])


def refused(capsys, words, code, *says):
    assert main(["train", *map(str, words)]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    for part in says:
        assert part in error
    return error


def content(folder):
    """Return all files of a run but the claims, which whoever looks at a run may leave."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != CLAIMS]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_a_device_that_cannot_be_used(phantoms, tmp_path, capsys):
    for name, says in (("nonsense", "is unknown: use cpu, cuda or cuda:1"), ("meta", "cannot be used")):
        refused(capsys, [phantoms, "--device", name, "--out", tmp_path / "run"], 2, f"fheat: device '{name}' {says}")
    assert not (tmp_path / "run").exists()


def test_too_few_labelled_scans(phantoms, tmp_path, capsys):
    out = tmp_path / "run"
    refused(
        capsys, [phantoms, *SMALL, "--labelled", 9, "--out", out], 3, str(phantoms), "labelled training scans, not 9"
    )
    assert not out.exists()


def test_no_labelled_scan_at_all(scans, tmp_path, capsys):
    settings = json.loads((scans / "dataset.json").read_text())
    shutil.rmtree(scans / "labelsTr")
    training = [path.name for path in (scans / "imagesTr").iterdir()]
    settings["unlabelled"] = sorted({name.split(".")[0].removesuffix("_0000") for name in training})
    (scans / "dataset.json").write_text(json.dumps(settings))
    (scans / "splits.json").unlink()
    refused(
        capsys, [scans, *SMALL, "--out", tmp_path / "run"], 3, "has no labelled training scan", "label at least one"
    )


@pytest.mark.parametrize(("value", "kind"), [(2, np.uint8), (300, np.int16), (-1, np.int16)])
def test_label_values_outside_the_classes(scans, tmp_path, capsys, value, kind):
    path = scans / "labelsTr" / f"{first_training_scan(scans)}.nii.gz"
    label = read_nifti(path)
    data = label.data.astype(kind)
    data[3, 4, 5] = value
    write_nifti(Volume(data, label.affine), path)
    says = (str(path), f"holds the label {value}", "0 background, 1 left_atrium")
    refused(capsys, [scans, *SMALL, "--labelled", 1, "--out", tmp_path / "run"], 3, *says)
    assert not (tmp_path / "run").exists()


def test_a_dataset_with_a_background_only(scans, tmp_path, capsys):
    settings = json.loads((scans / "dataset.json").read_text())
    settings["labels"] = {"background": 0}
    (scans / "dataset.json").write_text(json.dumps(settings))
    words = [scans, *SMALL, "--labelled", 1, "--out", tmp_path / "run"]
    refused(capsys, words, 3, "names no class beside the background")


def test_a_patch_mostly_of_padding(phantoms, tmp_path, capsys):
    """34 x 36 x 36 voxels are 40 % of 48 cubed, which is refused, and 53 % of 48 x 48 x 32, which is not."""
    words = [phantoms, "--labelled", 1, "--iterations", 1, "--device", "cpu", "--out", tmp_path / "run"]
    says = ("has 34 x 36 x 36 voxels", "60% of a crop of 48 x 48 x 48 would be padding", "patch_size such as 32 32 32")
    refused(capsys, [*words, "--patch-size", 48, 48, 48], 3, *says)
    assert not (tmp_path / "run").exists()
    assert main(["train", *map(str, [*words, "--patch-size", 48, 48, 32])]) == 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nlong story"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["gpu", "python", "torch on a cpu"],
)
def test_out_of_memory_names_what_to_lower(phantoms, tmp_path, capsys, monkeypatch, error):
    calls = []

    def greedy(self):
        calls.append(1)
        raise error

    monkeypatch.setattr(Step, "_advance", greedy)
    says = ("batch 2 and patch_size (32, 32, 32)", "does not fit into the memory of cpu", "lower batch or patch_size")
    refused(capsys, [phantoms, *SMALL, "--labelled", 1, "--out", tmp_path / "run"], 3, *says)
    assert calls == [1]


def test_scans_that_do_not_fit_name_the_setting(phantoms, tmp_path, capsys, monkeypatch):
    def full(volumes, device, resident):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("fheat.training.prepare.place", full)
    says = ("a set of 3 scans does not fit into the memory of cpu", "set data.resident to no")
    refused(capsys, [phantoms, *SMALL, "--labelled", 1, "--out", tmp_path / "run"], 3, *says)


def test_other_errors_of_a_step_are_not_taken_for_memory(phantoms, tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Step, "_advance", broken)
    settings = settings_of(data=str(phantoms), labelled=1, patch_size=(32, 32, 32), iterations=1)
    with pytest.raises(RuntimeError, match="a mistake"):
        Run(settings, tmp_path / "run", device="cpu").train()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("speed = 3", "field speed does not exist"),
        ("iteratoins = 3", "field iteratoins does not exist, perhaps schedule.iterations is meant"),
        ('rate = "fast"', "field optimiser.learning_rate"),
        ("patch_size = [32, 32]", "field data.patch_size"),
        ('method = "bcp"\nbatch = 3', "field data.batch: method bcp pastes one half into the other"),
        ("patch_size = [32, 32, 32]\nstride = [16, 16, 48]", "field validation.stride: (16, 16, 48) leaves gaps"),
        ('resident = "maybe"', "field data.resident"),
    ],
)
def test_fields_of_a_settings_file(phantoms, tmp_path, capsys, line, says):
    (tmp_path / "c.toml").write_text(f'data = "{phantoms}"\n{line}\n')
    refused(capsys, ["--config", tmp_path / "c.toml", "--out", tmp_path / "run"], 3, str(tmp_path / "c.toml"), says)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--speed", "3"], 2, "--speed"),
        (["--method", "magic"], 2, "magic"),
        (
            ["--method", "bcp", "--batch", "3"],
            2,
            "fheat: --data.batch: method bcp pastes one half into the other and needs 2, 4, ..., not 3",
        ),
        (["--network", "unet9000"], 2, "fheat: --network.name: 'unet9000' is unknown"),
        (["--network", "nnunet"], 2, "fheat: --network.name: 'nnunet' is unknown, perhaps dynunet is meant"),
    ],
)
def test_options(phantoms, tmp_path, capsys, words, code, says):
    refused(capsys, [phantoms, *SMALL, "--labelled", 1, *words, "--out", tmp_path / "run"], code, says)
    assert not (tmp_path / "run").exists()


def test_a_used_run_folder_is_refused_before_scans_are_read(phantoms, tmp_path, capsys, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    monkeypatch.setattr("fheat.training.prepare.load_scans", None)
    refused(
        capsys, [phantoms, *SMALL, "--out", tmp_path / "run"], 3, "exists and is not empty", "choose another folder"
    )
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    refused(capsys, [phantoms, *SMALL, "--out", tmp_path / "file"], 3, "exists and is not empty")
    assert (tmp_path / "file").read_text() == "precious"


def test_nothing_to_resume(tmp_path, capsys):
    refused(capsys, ["--resume", "--out", tmp_path / "nowhere"], 3, "is not a run folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    refused(capsys, ["--resume", "--out", tmp_path / "other"], 3, "is not a run folder: it has no config.toml")
    assert content(tmp_path / "other").keys() == {(tmp_path / "other" / "thesis.txt").relative_to(tmp_path / "other")}


def test_resuming_with_other_settings(phantoms, tmp_path, capsys):
    out = tmp_path / "run"
    settings = settings_of(data=str(phantoms), labelled=1, patch_size=(32, 32, 32), iterations=3, method="supervised")
    run = Run(settings, out, device="cpu")
    run.stop()
    with pytest.raises(Stopped):
        run.train()
    before = content(out)
    (tmp_path / "c.toml").write_text(to_toml(settings))
    refused(capsys, ["--resume", "--out", out, "--config", tmp_path / "c.toml"], 2, "a resumed run keeps its settings")
    refused(
        capsys, ["--resume", "--out", out, "--batch", 1], 2, "a resumed run keeps its settings: leave out --data.batch"
    )
    with pytest.raises(BadInput, match=r"another optimiser\.learning_rate \(0.01, not 0.5\)"):
        Run(changed(settings, learning_rate=0.5), out, resume=True, device="cpu")
    assert content(out) == before
    edited = changed(settings, **{"warm_up": 9, "validate_every": 2})
    (out / "config.toml").write_text(to_toml(edited))
    refused(
        capsys,
        ["--resume", "--out", out, "--device", "cpu"],
        3,
        "was begun with another schedule.warm_up (500, not 9);",
    )
    edited = changed(settings, **{"validate_every": 2, "iterations": 4})  # when to look and to end may change
    (out / "config.toml").write_text(to_toml(edited))
    assert main(["train", "--resume", "--out", str(out), "--device", "cpu"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_while_scans_are_read(phantoms, tmp_path, capsys, monkeypatch, number, code):
    monkeypatch.setattr("fheat.training.prepare.load_scans", lambda *anything, **named: os.kill(os.getpid(), number))
    assert refused(capsys, [phantoms, *SMALL, "--out", tmp_path / "run"], code) == "fheat: interrupted\n"
    assert not (tmp_path / "run").exists()


def test_the_picture_of_a_run():
    gates = {"enc1": 0.5, "dec1": 0.0, "dec2": 7.0, "dec3": float("nan")}
    lines = str(picture(Look(1500, 16000, 50.61, {"total": 1.5}, gates, 0.9))).splitlines()
    assert lines == [
        "1,500 of 16,000  50.6 it/s  total 1.500  best Dice 0.9000",
        f"  enc1   D 0.5000  {'#' * 20}",
        "  dec1   D 0.0000  closed",
        f"  dec2   D 7.0000  {'#' * 40}",
        f"  dec3   D    nan  {'#' * 40}",
    ]


def test_a_preset_stands_for_what_is_not_given_itself():
    def of(**values):
        settings = make_settings({"data": "scans", "preset": "paper", **values})
        return settings.optimiser.clip, settings.validation.every

    assert of() == (None, 200)
    assert of(validate_every=50) == (None, 50)
    assert of(optimiser={"clip": 2.0}) == (2.0, 200)
    with pytest.raises(BadInput, match="preset: 'papers' is unknown; use paper"):
        make_settings({"data": "scans", "preset": "papers"})


def test_options_and_files_win_over_a_preset(tmp_path):
    (tmp_path / "own.toml").write_text("[validation]\nevery = 70\n")
    words = ["scans", "--preset", "paper", "--config", str(tmp_path / "own.toml")]
    _, settings = _settings(words)
    assert (settings.optimiser.clip, settings.validation.every) == (None, 70)
    _, settings = _settings([*words, "--optimiser.clip", "3", "--validate-every", "9"])
    assert (settings.optimiser.clip, settings.validation.every) == (3.0, 9)


def test_a_network_brings_its_learning_rate_where_none_is_given(tmp_path):
    (tmp_path / "own.toml").write_text("[network]\nname = 'light_unetr'\n[optimiser]\nweight_decay = 0.5\n")
    (tmp_path / "rate.toml").write_text("[network]\nname = 'light_unetr'\n[optimiser]\nlearning_rate = 0.01\n")
    for words, rate in (
        ([], 0.01),
        (["--network", "light_unetr"], 0.001),
        (["--network", "light_unetr_l"], 0.001),
        (["--network", "light_unetr", "--learning-rate", "0.01"], 0.01),
        (["--config", str(tmp_path / "own.toml")], 0.001),
        (["--config", str(tmp_path / "rate.toml")], 0.01),
        (["--config", str(tmp_path / "own.toml"), "--network", "segresnet"], 0.01),
    ):
        _, settings = _settings(["scans", *words])
        assert settings.optimiser.learning_rate == rate, words
        again = make_settings(settings.model_dump())
        assert again == settings
    some = OptimiserSettings(clip=None)  # of which the learning rate is not given
    assert (
        make_settings({"data": "scans", "network": "light_unetr", "optimiser": some}).optimiser.learning_rate == 0.001
    )
    with pytest.raises(BadInput, match=r"network.name: 'light' is unknown"):
        make_settings({"data": "scans", "network": "light"})
    with pytest.raises(BadInput, match=r"field network.name: Input should be a valid string"):
        make_settings({"data": "scans", "network.name": 1.5})

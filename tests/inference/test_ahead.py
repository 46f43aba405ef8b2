"""What is opened beside the imports is what would have been opened later, or nothing: a guess is only a guess."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from fheat import Card, Predictor, create_model, save
from fheat.cli.main import _prepared, main
from fheat.data.phantom import phantom
from fheat.inference import ahead
from fheat.inference.ahead import NOTE, opening_ahead
from fheat.inference.compilers import COMPILERS, Compiler, compiled_before, compiled_network
from fheat.io import Volume, read_nifti, write_nifti
from fheat.models.card import Window
from fheat.system.cache import cached
from tests.inference.test_runtimes import network

pytest.importorskip("openvino")
SHAPE = (1, 32, 32, 32)


@pytest.fixture(autouse=True)
def _kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened(monkeypatch):
    """The kept networks that are opened when they are asked for, and not ahead."""
    usual, found = COMPILERS["openvino"], []

    def note(content, plan):
        found.append(len(content))
        return usual.open(content, plan)

    monkeypatch.setitem(COMPILERS, "openvino", Compiler(usual.build, note, usual.forms))
    return found


def asked(model, batch=2):
    return compiled_network("openvino", model, SHAPE, "float32", batch)


def entries(kind):
    return [entry.file for entry in cached() if entry.kind.startswith(kind)]


@pytest.mark.slow
@torch.no_grad()
def test_the_second_start_finds_it_open_with_the_same_output(opened):
    model, x = network(), torch.randn(5, *SHAPE)
    with opening_ahead("some-model"):
        first = asked(model)(x).clone()
    assert len(opened) == len(entries("openvino")) == len(entries(NOTE)) == 1
    with opening_ahead("some-model"):
        run = asked(model)
        assert len(opened) == 1  # so it was opened ahead
        assert run._ready  # its first windows have run
        assert torch.equal(run(x), first)
        assert torch.equal(asked(model)(x), first)  # the guess is taken once
        assert len(opened) == 2
    with opening_ahead("another-model"):
        assert torch.equal(asked(model)(x), first)
    assert len(opened) == 3
    assert len(entries(NOTE)) == 2


@pytest.mark.slow
@torch.no_grad()
def test_a_wrong_guess_is_let_go_and_replaced(opened):
    model, other, x = network(), network(seed=1), torch.randn(1, *SHAPE)
    with opening_ahead("folder"):
        asked(model)
    with opening_ahead("folder"):  # of the same name, trained anew
        assert (asked(other)(x) - other(x)).abs().max() < 1e-4 * other(x).abs().max()
    assert len(opened) == 2
    with opening_ahead("folder"):
        asked(other)
    with opening_ahead("folder"):
        asked(other, batch=1)
    assert len(opened) == 3  # for the batch of 1
    assert len(entries(NOTE)) == 1


@pytest.mark.slow
@torch.no_grad()
def test_a_damaged_network_is_compiled_again(opened):
    model, x = network(), torch.randn(1, *SHAPE)
    with opening_ahead("model"):
        expected = asked(model)(x).clone()
    (file,) = entries("openvino")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with opening_ahead("model"):
        assert torch.equal(asked(model)(x), expected)
    assert len(opened) == 2
    assert entries("openvino") == [file]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_only_a_predictor_that_has_no_use_for_it_forgets_the_note(runtime, opened):
    model = network()
    with opening_ahead("model"):
        Predictor(model, runtime="openvino", batch=2)._run.prepare(SHAPE)
    with opening_ahead("model"):
        predictor = Predictor(model, runtime=runtime, batch=2)
        if runtime == "openvino":
            assert not ahead._guess.thread.is_alive()  # so that its memory counts as the program's
        predictor._run.prepare(SHAPE)
    assert len(opened) == 1
    assert len(entries(NOTE)) == (runtime == "openvino")


@pytest.mark.parametrize("content", [None, b"", b"[]", b'["openvino-1", "k", [[1], "float32", 2]]', b'["a", 1, null]'])
def test_without_a_note_that_can_be_read_nothing_is_imported(content, monkeypatch):
    monkeypatch.setattr(ahead, "import_openvino", None)
    if content is not None:
        with opening_ahead("model"):
            ahead.write_cached(NOTE, ahead._guess.note, content)
    with opening_ahead("model"):
        assert ahead._guess.kept is None
    assert ahead._guess is None


def test_a_note_without_its_network_opens_nothing(monkeypatch):
    with opening_ahead("model"):
        ahead.taken_ahead(ahead.Kept("openvino-1", "k" * 64, ahead.Plan(SHAPE, "float32", 2, 2)))
        ahead.write_cached("openvino-1", "k" * 64, b"no network")
    with opening_ahead("model"):  # which OpenVINO refuses
        assert ahead._guess.kept == ("openvino-1", "k" * 64, (SHAPE, "float32", 2, 2))
        assert ahead._guess.taken() is None
    (file,) = entries("openvino")
    file.unlink()
    monkeypatch.setattr(ahead, "import_openvino", None)
    with opening_ahead("model"):
        assert ahead._guess.kept is None


@pytest.fixture
def _noted():
    """A note whose network is there, though none that OpenVINO takes."""
    with opening_ahead("model"):
        ahead.taken_ahead(ahead.Kept("openvino-1", "k" * 64, ahead.Plan(SHAPE, "float32", 2, 2)))
        ahead.write_cached("openvino-1", "k" * 64, b"no network")


@pytest.mark.usefixtures("_noted")
@pytest.mark.parametrize("error", [ImportError("no module"), OSError("libtbb.so.12: cannot open shared object file")])
def test_it_is_no_matter_where_openvino_is_gone_or_broken(error, monkeypatch):
    def fails():
        raise error

    monkeypatch.setattr(ahead, "import_openvino", fails)
    with opening_ahead("model"):
        assert ahead._guess is None
        assert not ahead.was_opening()


@pytest.mark.usefixtures("_noted")
def test_an_interrupt_of_the_import_is_not_lost(monkeypatch):
    """OpenVINO's modules say of it that they could not be initialised."""

    def interrupted():
        raise ImportError("initialization failed") from KeyboardInterrupt(130)

    monkeypatch.setattr(ahead, "import_openvino", interrupted)
    with pytest.raises(ImportError), opening_ahead("model"):
        raise AssertionError("it went on")
    assert main(["predict", "model", "scan.nii.gz", "masks"]) == 130


@pytest.mark.usefixtures("_noted")
def test_what_is_not_there_to_be_opened_is_forgotten():
    with opening_ahead("model"):
        assert not compiled_before("openvino", network(), SHAPE, "float32", 2)
        assert ahead._guess.kept is None
    assert not entries(NOTE)


@pytest.mark.usefixtures("_noted")
def test_the_bound_knows_the_peak_of_what_went_on_side_by_side(monkeypatch):
    volume = Volume(np.zeros((40, 36, 34), dtype=np.int16), np.eye(4))
    monkeypatch.setattr("fheat.inference.predictor.peak_bytes", lambda: 10**13)
    with opening_ahead("model"):
        assert Predictor(network(), runtime="torch").memory(volume).total == 10**13
    assert Predictor(network(), runtime="torch").memory(volume).total < 10**12


@pytest.mark.usefixtures("_noted")
@pytest.mark.parametrize("words", ["model scan.nii.gz", "model --help x y", "model scan.nii.gz out --engine ray"])
def test_words_that_segment_nothing_here_open_nothing(words, monkeypatch):
    monkeypatch.setattr(ahead, "begun_ahead", None)
    assert type(_prepared(["predict", *words.split()])) is nullcontext


@pytest.mark.slow
def test_predict_opens_ahead_and_makes_the_same_mask(tmp_path, opened, monkeypatch):
    size, card = SHAPE[1:], Card(window=Window(size=SHAPE[1:], stride=(16, 16, 16)))
    folder = save(create_model("unet", patch_size=size, channels=[4, 4, 8, 8, 8]), tmp_path / "model", card)
    write_nifti(phantom(0, (40, 36, 34)).image, tmp_path / "scan.nii.gz")
    masks = []
    for name, words in (("first", []), ("second", []), ("third", ["--runtime", "torch"]), ("fourth", [])):
        command = ["predict", str(folder), "scan.nii.gz", name, "--no-preview", "--runtime", "openvino", *words]
        assert main(command) == 0
        masks.append(read_nifti(tmp_path / name / "scan.nii.gz").data)
        assert len(opened) == (2 if name == "fourth" else 1)  # the third has forgotten the note
        assert len(entries(NOTE)) == (name != "third")
    assert 0 < masks[0].sum() < masks[0].size
    assert all(np.array_equal(mask, masks[0]) for mask in (masks[1], masks[3]))


def test_one_folder_has_one_note_however_it_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    notes = []
    for name in ("run", "./run", str(tmp_path / "run"), "other"):
        with opening_ahead(name):
            notes.append(ahead._guess.note)
    assert len(set(notes[:3])) == 1
    assert notes[3] not in notes[:3]

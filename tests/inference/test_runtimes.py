"""CPU runtimes: the same numbers as torch, a remedy where a package is missing, and torch where nothing else works."""

import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fheat import BadInput, FractionalHeat, Predictor, create_model, load, retire
from fheat.inference import replay as replay_module
from fheat.inference import runtimes
from fheat.inference.compilable import compilable, with_precise_norms
from fheat.inference.compilers import COMPILERS, Compiler
from fheat.inference.replay import VOXELS_WORTH_KERNELS, Replay, unrounded_convolutions
from fheat.inference.runtimes import FASTEST, CompiledRuntime, UnusableRuntime, choose_runtime
from fheat.inference.windows import Windows
from fheat.io import Volume
from fheat.nn.fheat import FHEAT
from fheat.nn.layers import one_group
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.ops.rational import Rational
from fheat.system import machine

CPU = torch.device("cpu")
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "scan-cpu.json"


def network(open_gates=("dec1",), seed=0, **options):
    """Return a retired network with random norms and coefficients, its gates closed but for those named."""
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:  # a runtime takes time for every block, and those of a stage are alike
        patch.setattr("fheat.networks.fheat_seg.DEPTHS", (1, 1, 1, 1))
        model = create_model("fheat_seg", patch_size=(32, 32, 32), **options).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "denominator" in name or "position" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    for site, gate in gates_of(model).items():
        gate.set_strength(0.6 if site in open_gates else 0.0)
    return retire(model)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(32, 32, 32), (33, 47, 38)])
@pytest.mark.parametrize("name", ["fheat_seg", "light_unetr", "fheat_seg_l"])
@torch.no_grad()
def test_the_compilable_form_computes_the_same(name, grid):
    torch.manual_seed(0)
    model = create_model(name, patch_size=(32, 32, 32)).eval()
    x = torch.randn(2, 1, *grid)
    expected = model(x)
    assert (compilable(model)(x) - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("dims", [1, 2, 3])
@torch.no_grad()
def test_parts_in_their_compilable_form(dims):
    x = torch.randn(2, 16, *(7, 6, 5)[:dims])
    gate, activation = FractionalHeat(dims=dims, initial_strength=0.7), Rational(16)
    activation.denominator.data += torch.randn_like(activation.denominator)
    assert (compilable(gate)(x) - gate(x)).abs().max() < 1e-5
    assert (compilable(activation)(x) - activation(x)).abs().max() < 1e-5
    assert torch.equal(compilable(FractionalHeat(dims=dims, initial_strength=0.0))(x), x)


@torch.no_grad()
def test_instance_norms_over_rows_compute_the_same():
    x = 3 + torch.randn(2, 4, 7, 6, 5, dtype=torch.float64)
    for options in ({}, {"affine": True, "eps": 0.1}, {"affine": True, "track_running_stats": True}):
        norm = nn.InstanceNorm3d(4, **options).double().eval()
        for values in (*norm.parameters(), *norm.buffers()):
            values.copy_(2 * torch.rand_like(values, dtype=torch.float64) + 0.5)
        written = with_precise_norms(nn.Sequential(norm))
        assert (type(written[0]) is nn.InstanceNorm3d) == norm.track_running_stats
        assert (written(x) - norm(x)).abs().max() < 1e-12
    assert with_precise_norms(nn.GroupNorm(2, 4)) is None


@torch.no_grad()
def test_only_what_is_known_is_rewritten():
    heard = FHEAT(8)
    heard.project.register_forward_hook(lambda module, args, output: 2 * output)
    overlapping = nn.ConvTranspose3d(4, 2, 3, stride=2)
    strided = nn.ConvTranspose3d(4, 2, (2, 1, 3), stride=(2, 1, 3), bias=False)
    x, gate = torch.randn(1, 8, 6, 5, 4), FractionalHeat(initial_strength=0.5)
    assert (compilable(heard)(x, gate) - heard(x, gate)).abs().max() < 1e-5
    for conv in (overlapping, strided):
        assert (compilable(conv)(x[:, :4]) - conv(x[:, :4])).abs().max() < 1e-5
    assert type(compilable(overlapping)) is nn.ConvTranspose3d
    assert type(compilable(strided)) is not nn.ConvTranspose3d


class Parts(nn.Module):
    """One of each kind of part that is rewritten; odd grids, two channels in, three out."""

    def __init__(self, channels=8):
        super().__init__()
        self.stem, self.norm = nn.Conv3d(2, channels, 2, stride=2), one_group(channels)
        self.gate = FractionalHeat(initial_strength=0.6)
        self.fheat, self.activation = FHEAT(channels), Rational(channels)
        self.head = nn.ConvTranspose3d(channels, 3, 2, stride=2)

    def forward(self, x):
        x = self.norm(self.stem(x))
        return self.head(self.activation(x + self.fheat(x, self.gate)))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["openvino", "onnx"])
@pytest.mark.parametrize("grid", [(14, 10, 6), (22, 18, 26)])
@torch.no_grad()
def test_parts_equal_torch(runtime, grid):
    pytest.importorskip("openvino" if runtime == "openvino" else "onnxruntime")
    torch.manual_seed(0)
    model = Parts().eval()
    run = choose_runtime(model, runtime, CPU)
    x = torch.randn(3, 2, *grid)
    found, expected = run(x), model(x)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-4
    assert torch.equal(run(x), found)
    assert (run(x[:1]) - expected[:1]).abs().max() < 1e-4
    assert len(run._compiled) == 1


@pytest.mark.slow
def test_a_network_with_open_gates_on_an_odd_grid_equals_torch():
    pytest.importorskip("openvino")
    model = network(("enc1", "dec1"), out_channels=3)
    data = np.random.default_rng(0).normal(size=(50, 40, 36)).astype(np.float32)
    windows = Windows((33, 32, 35), (16, 16, 16))
    plain, compiled = (Predictor(model, windows=windows, runtime=name) for name in ("torch", "openvino"))
    assert (plain.runtime, compiled.runtime) == ("torch", "openvino")
    expected, found = (one.sliding(None)(torch.from_numpy(data)[None]) for one in (plain, compiled))
    assert (found - expected).abs().max() < 1e-4
    mask = plain.segment(data)
    assert len(np.unique(mask)) > 1
    assert (mask == compiled.segment(data)).mean() > 0.999
    bound = compiled.memory(Volume(data, np.eye(4)))
    assert bound.windows >= 2 * 4 * 4 * 3 * 33 * 32 * 35  # output and probabilities of four windows


def test_auto_is_what_was_measured_to_be_fastest():
    rows = json.loads(RESULT.read_text())["results"]["window_ms"]
    times = {name: rows[name] for name in ("torch", "onnx", "openvino")}
    assert min(times, key=times.get) == FASTEST


def test_auto_without_the_package_is_torch(monkeypatch):
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    model = network()
    assert choose_runtime(model, "auto", CPU).network is model
    assert choose_runtime(model, "auto", CPU).name == "torch"
    assert Predictor(model).runtime == "torch"
    for runtime, package in (("onnx", "onnx"), ("openvino", "openvino")):
        with pytest.raises(BadInput, match=rf'{runtime}: needs the package {package}; pip install "fheat\[export\]"'):
            Predictor(model, runtime=runtime)


@torch.no_grad()
def test_every_runtime_follows_the_protocol():
    """All say who they are, take a hint, get ready, and give what the network gives."""
    model, x = Parts().eval(), torch.randn(2, 2, 10, 8, 6)
    every = [choose_runtime(model, "torch", CPU), Replay(model, "float32")]
    every += [CompiledRuntime(model, name) for name in ("onnx", "openvino") if not runtimes.missing_packages(name)]
    members = [name for name in vars(runtimes.Runtime) if name == "__call__" or not name.startswith("_")]
    assert sorted(members) == ["__call__", "each", "expect", "kernel_bytes", "name", "precision", "prepare", "rehearse"]
    for runtime in every:
        assert all(hasattr(runtime, member) for member in members)
        assert (runtime.name in ("torch", "onnx", "openvino"), runtime.precision) == (True, "float32")
        runtime.expect(10**9, (2, 10, 8, 6))
        runtime.prepare((2, 10, 8, 6))
        if not isinstance(runtime, Replay):  # which needs a GPU
            assert (runtime(x) - model(x)).abs().max() < 1e-4


@pytest.mark.slow
def test_the_package_works_without_the_optional_ones():
    code = (
        "import sys\n"
        "for name in ('onnx', 'onnxscript', 'onnxruntime', 'openvino'): sys.modules[name] = None\n"
        "import numpy as np, fheat, fheat.inference.folder\n"
        "predictor = fheat.Predictor(fheat.create_model('fheat_seg', patch_size=(32, 32, 32)), runtime='torch')\n"
        "print(predictor.segment(np.zeros((32, 32, 32))).shape, predictor.runtime)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(32, 32, 32) torch\n"


def test_only_processors():
    model = network()
    on_gpu = choose_runtime(model, "auto", torch.device("cuda"))
    assert isinstance(on_gpu, Replay)
    assert on_gpu.network is model
    with pytest.raises(ValueError, match="runs on the CPU"):
        choose_runtime(model, "openvino", torch.device("cuda"))
    with pytest.raises(ValueError, match="runtime='tensorrt' is unknown: use one of auto, torch, onnx, openvino"):
        Predictor(model, runtime="tensorrt")


def test_half_precision_is_for_those_that_have_it():
    pytest.importorskip("openvino")
    model, x = Parts().eval(), torch.randn(1, 2, 14, 10, 6)
    half = choose_runtime(model, "openvino", CPU, "bfloat16")
    assert half.precision == "bfloat16"
    expected = model(x)
    difference = ((half(x) - expected).norm() / expected.norm()).item()
    assert 1e-6 < difference < 0.05
    assert choose_runtime(model, "openvino", CPU, "auto").precision == "float32"
    for runtime in ("torch", "onnx"):
        with pytest.raises(ValueError, match="precision 'bfloat16' is for GPUs and OpenVINO"):
            choose_runtime(model, runtime, CPU, "bfloat16")
    with pytest.raises(ValueError, match="precision='float16' is unknown"):
        Predictor(model, device="cpu", precision="float16")
    with pytest.raises(ValueError, match="precision='float16' is unknown: use one of auto, float32, bfloat16"):
        Replay(model, "float16")


class Scaled(nn.Module):
    """Two classes that a bias keeps apart, or hardly."""

    def __init__(self, apart):
        super().__init__()
        self.apart = apart

    def forward(self, x):
        close = torch.nn.functional.linear(x.movedim(1, -1), torch.ones(1, 1)).movedim(-1, 1)
        return torch.cat([x, close + self.apart], dim=1)


@torch.no_grad()
@pytest.mark.parametrize(("apart", "keeps"), [(1.0, True), (1e-4, False)])
def test_half_precision_where_it_keeps_the_classes(apart, keeps):
    """A product in bfloat16 is off by up to 0.4 %, which changes classes that are nearer than that."""
    model = Scaled(apart)
    x = torch.randn(1, 1, 16, 16, 16)
    assert Replay(model)._keeps_classes(x, model(x)) is keeps
    x = 10 + torch.rand(1, 1, 16, 16, 16)
    assert Replay(model, regions=True)._keeps_classes(x, model(x)) is True


class SeesKernels(nn.Module):
    """Remembers whether kernels would run, and waits where it is told to."""

    def __init__(self, inside=None, go=None):
        super().__init__()
        self.inside, self.go, self.seen = inside, go, []

    def forward(self, x):
        self.seen.append(kernels.usable(x))
        if self.inside is not None:
            self.inside.set()
            self.go.wait()
        return torch.cat([x, x], dim=1)


@torch.no_grad()
def test_windows_are_judged_without_kernels_and_other_threads_keep_theirs():
    inside, go = threading.Event(), threading.Event()
    network, x = SeesKernels(inside, go), torch.randn(1, 1, 4, 4, 4)

    def judge():
        with kernels.use("always"):
            Replay(network)._plain(x, "float32")
            network.seen.append(kernels.usable(x))

    thread = threading.Thread(target=judge)
    with kernels.use("always"):
        thread.start()
        inside.wait()
        here = kernels.usable(x)
        go.set()
        thread.join()
    assert here
    assert network.seen == [False, True]


@torch.no_grad()
def test_windows_without_foreground_do_not_decide():
    for model, size in ((Scaled(-1.0), 16), (Scaled(1.0), 8)):  # the second has too few voxels
        replay, x = Replay(model), torch.randn(1, 1, size, size, size)
        replay.expect(VOXELS_WORTH_KERNELS + x.numel(), tuple(x.shape[1:]))
        assert torch.equal(replay(x), model(x))
        assert replay.precision == "auto"


@torch.no_grad()
@pytest.mark.parametrize(("asked", "first"), [("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")])
def test_a_few_windows_on_a_gpu_do_without_kernels_and_do_not_decide_the_precision(asked, first, monkeypatch):
    monkeypatch.setattr(replay_module, "VOXELS_WORTH_KERNELS", 3 * 4**3)
    network, x = SeesKernels(), torch.randn(1, 1, 4, 4, 4)
    replay = Replay(network, asked)
    with kernels.use("always"):
        for _ in range(2):
            replay(x)
            assert replay.precision == first
    assert network.seen == [False, False]
    replay.expect(4**3, (1, 4, 4, 4))  # these are the last ones that are missing
    assert replay.precision == asked


def test_convolutions_are_unrounded_within_the_block_only():
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    with unrounded_convolutions(), unrounded_convolutions():
        assert convolutions.fp32_precision == "ieee"
    assert convolutions.fp32_precision == before != "ieee"
    with pytest.raises(KeyError), unrounded_convolutions():
        raise KeyError
    assert convolutions.fp32_precision == before


def test_graphs_that_are_there_are_used_for_any_number_of_windows():
    replay = Replay(nn.Identity())
    replay.expect(VOXELS_WORTH_KERNELS, (1, 4, 4, 4))
    assert replay.precision == "auto"
    replay.expect(1, (1, 4, 4, 4))
    assert replay.precision == "float32"
    replay._graphs[torch.Size([1, 1, 4, 4, 4])] = None
    assert replay.precision == "auto"


def test_bfloat16_on_a_cpu_is_compiled_for_any_number_of_windows():
    pytest.importorskip("openvino")
    runtime = choose_runtime(Parts().eval(), "auto", CPU, "bfloat16")
    assert (runtime.name, runtime.precision) == (FASTEST, "bfloat16")


@pytest.mark.parametrize(("flags", "warns"), [("fma avx512_bf16", False), ("fma avx2", True), (None, False)])
def test_bfloat16_is_warned_of_where_the_processor_imitates_it(flags, warns, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(machine, "_cpu_field", lambda name: flags)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        choose_runtime(Parts().eval(), "openvino", CPU, "bfloat16")
    assert ["imitates it" in str(one.message) for one in heard] == [True] * warns


def test_a_folder_of_scans_is_compiled_for_before_its_first_scan(monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(runtimes, "VOXELS_WORTH_COMPILING", 80_000)
    predictor = Predictor(Parts().eval(), windows=Windows((10, 10, 10), (5, 5, 5)))
    volume = Volume(np.random.default_rng(0).normal(size=(20, 20, 20, 2)).astype(np.float32), np.eye(4))
    predictor.memory(volume)  # 27 windows of 1000 voxels
    assert predictor.runtime == "torch"
    predictor.memory(volume, to_come=1)
    assert predictor.runtime == "torch"
    predictor.memory(volume, to_come=2)
    assert predictor.runtime == "openvino"


def test_auto_compiles_from_where_it_is_worth_it(monkeypatch):
    pytest.importorskip("openvino")
    model = Parts().eval()
    predictor = Predictor(model, windows=Windows((10, 10, 10), (5, 5, 5)))
    data = np.random.default_rng(0).normal(size=(20, 20, 20, 2)).astype(np.float32)
    monkeypatch.setattr(runtimes, "VOXELS_WORTH_COMPILING", 60_000)
    assert predictor.runtime == "torch"
    predictor.segment(data)  # 27 windows of 1000 voxels
    assert predictor.runtime == "torch"
    assert not predictor._run._compiled
    predictor.segment(data)
    assert predictor.runtime == "torch"
    predictor.memory(Volume(data, np.eye(4)))  # these would pass it
    assert predictor.runtime == "openvino"
    predictor.segment(data)
    assert predictor.runtime == "openvino"
    assert list(predictor._run._compiled) == [(2, 10, 10, 10)]


def test_a_bound_is_that_of_what_runs_after_the_trial_that_it_takes(monkeypatch):
    """The four windows of the trial are the last ones that were missing until compiling pays."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(runtimes, "VOXELS_WORTH_COMPILING", 27_000 + 4_000)
    predictor = Predictor(Parts().eval(), windows=Windows((10, 10, 10), (5, 5, 5)))
    data = np.random.default_rng(0).normal(size=(20, 20, 20, 2)).astype(np.float32)
    predictor.memory(Volume(data, np.eye(4)))
    known = predictor.runtime
    assert predictor.predict(data).runtime == known
    assert [runtime for runtime, _ in predictor._trials] == ["torch", "openvino"]


@pytest.mark.parametrize(("model", "name"), [("la-full", "torch"), ("la-full-l", "openvino")])
def test_auto_compiles_a_network_that_computes_much_for_few_windows(model, name):
    """Sixteen windows of one LA scan are 15 G multiply-adds of FHEAT-Seg, and 900 G of FHEAT-Seg-L."""
    pytest.importorskip("openvino")
    runtime = CompiledRuntime(load(model).eval(), "openvino", automatic=True)
    assert runtime.name == "torch"  # as long as nothing is known to come
    runtime.expect(16 * 112 * 112 * 80, (1, 112, 112, 80))
    assert runtime.name == name
    assert not runtime._compiled


def test_a_network_is_tried_once_and_only_where_it_decides(monkeypatch):
    tried = []
    monkeypatch.setattr(runtimes, "macs_per_voxel", lambda network, shape: tried.append(shape) or 1.0)
    network, shape = create_model("miniature").eval(), (1, 16, 16, 16)
    explicit, automatic = (CompiledRuntime(network, "openvino", automatic=automatic) for automatic in (False, True))
    explicit.expect(1000, shape)
    automatic.expect(runtimes.VOXELS_WORTH_COMPILING, shape)
    assert tried == []
    for voxels in (1000, 2000):
        automatic.expect(voxels, shape)
    assert tried == [shape]


class Unexportable(nn.Module):
    """Leaves torch in its forward, in a way no exporter follows."""

    def forward(self, x):
        return torch.from_numpy(np.stack([x.numpy()[:, 0], np.sort(x.numpy()[:, 0], axis=-1)], axis=1))


@torch.no_grad()
def test_a_network_that_cannot_be_compiled_runs_in_torch(monkeypatch):
    monkeypatch.setattr(runtimes, "VOXELS_WORTH_COMPILING", 0)
    pytest.importorskip("openvino")
    x = torch.randn(2, 1, 8, 8, 8)
    automatic = CompiledRuntime(Unexportable(), "openvino", automatic=True)
    with pytest.warns(UserWarning, match="openvino cannot run this network .*: torch runs it") as said:
        found = automatic(x)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert torch.equal(found, Unexportable()(x))
    assert automatic.name == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        automatic(x)
    explicit = CompiledRuntime(Unexportable(), "openvino")
    refused = r"openvino: cannot run this network .*; use the runtime torch"
    with pytest.raises(UnusableRuntime, match=refused):
        explicit(x)
    monkeypatch.setattr(runtimes, "compiled_network", None)  # which is not called again
    with pytest.raises(UnusableRuntime, match=refused):
        explicit(x)


@torch.no_grad()
@pytest.mark.parametrize("automatic", [False, True])
def test_windows_that_a_network_does_not_take_say_nothing_of_its_compiler(automatic, monkeypatch):
    """A scan with three channels for a network that takes two is refused, and the next scan is segmented."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(runtimes, "VOXELS_WORTH_COMPILING", 0)
    model = Parts().eval()
    runtime = CompiledRuntime(model, "openvino", automatic=automatic)
    with pytest.raises(RuntimeError, match="channels"):
        runtime.prepare((3, 10, 8, 6))
    x = torch.randn(1, 2, 10, 8, 6)
    assert (runtime(x) - model(x)).abs().max() < 1e-4
    assert runtime.name == "openvino"


@torch.no_grad()
def test_a_wrong_result_is_never_used(monkeypatch):
    """Whatever a runtime makes of the network, it is compared with torch first."""
    model = network()

    def compile_to(run):
        monkeypatch.setitem(COMPILERS, "openvino", Compiler(lambda *given: b"", lambda *given: run))

    compile_to(lambda x: 1.01 * model(x))
    with pytest.raises(BadInput, match=r"off by 0\.01 of the largest value"):
        CompiledRuntime(model, "openvino")(torch.randn(1, 1, 32, 32, 32))
    compile_to(lambda x: model(x) * torch.nan)
    with pytest.raises(BadInput, match="off by nan"):
        CompiledRuntime(model, "openvino")(torch.randn(1, 1, 32, 32, 32))


def test_half_precision_is_judged_by_the_mean_where_a_network_returns_its_members_too():
    """The members behind the mean have other numbers of channels in front of them and are no classes of their own."""

    class WithMembers(nn.Module):
        def forward(self, x):
            mean = torch.cat([-x, x], dim=1)
            return torch.cat([mean, 100 + mean, 200 - mean], dim=1)

    x = torch.randn(1, 1, 16, 16, 16)
    logits = WithMembers()(x)
    assert torch.equal(Replay(WithMembers(), groups=3)._classes(logits), (x > 0).long()[:, 0])
    assert torch.equal(Replay(WithMembers(), groups=3, regions=True)._classes(logits), logits[:, :2] > 0)

"""The architecture of a network: stages, levels, skips, gates and one block, as the network really is."""

import pytest
from torch import nn

from fheat import allocation, create_model, load, retire
from fheat.gates.architecture import LearnedInput, Level, Skip, architecture
from fheat.ops.gates import gates_of
from tests.tiny_u import TinyU

SHAPE = (1, 1, 8, 6)
SITES = ["enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2", "dec1"]


@pytest.fixture(scope="module")
def small():
    """FHEAT-Seg of the zoo."""
    return load("la-4")


@pytest.fixture(scope="module")
def drawn(small):
    return architecture(small)


def test_fheat_seg_at_its_patch(small, drawn):
    assert (drawn.name, drawn.input, drawn.output) == ("fheat_seg", (1, 112, 112, 80), (2, 112, 112, 80))
    assert drawn.parameters == sum(value.numel() for value in small.parameters())
    assert drawn.levels == (
        Level((28, 28, 20), 24), Level((14, 14, 10), 48), Level((7, 7, 5), 60), Level((4, 4, 3), 96),
    )  # fmt: skip
    assert [stage.name for stage in drawn.stages] == SITES
    assert [stage.level for stage in drawn.stages] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [stage.channels for stage in drawn.stages] == [24, 48, 60, 96, 96, 60, 48, 24]
    assert [(stage.blocks, stage.block) for stage in drawn.stages[:4]] == [
        (1, "LightBlock"), (2, "LightBlock"), (3, "LightBlock"), (2, "LightBlock"),
    ]  # fmt: skip
    assert [stage.grid for stage in drawn.stages if stage.level == 2] == [(8, 8, 6)] * 2  # 7x7x5, padded


def test_parts_between_the_stages(drawn):
    kinds = {part.name: (part.kind, part.type) for part in drawn.parts if part.kind != "stage"}
    assert kinds == {
        "stem": ("stem", "Stem"), "down1": ("down", "Down"), "down2": ("down", "Down"), "down3": ("down", "Down"),
        "dropout": ("other", "Dropout"), "up3": ("up", "Up"), "up2": ("up", "Up"), "up1": ("up", "Up"),
        "head": ("head", "PatchTransposed3d"),
    }  # fmt: skip
    assert drawn.skips == (Skip("enc3", "dec3", "add"), Skip("enc2", "dec2", "add"), Skip("enc1", "dec1", "add"))
    assert drawn.learned_inputs == (LearnedInput("position", (96, 4, 4, 3), "dropout", "add"),)


def test_gates_are_those_of_the_allocation(small, drawn):
    assert [gate for stage in drawn.stages for gate in stage.gates] == list(allocation(small))
    assert [stage.gates[0].state for stage in drawn.stages] == ["open", *["retired"] * 6, "open"]


def test_a_gate_that_closes_and_retires():
    model = TinyU()
    gates_of(model)["bottom.0.1"].set_strength(0.0)
    for state, changed in (("closed", model), ("retired", retire(model))):
        stages = {stage.name: [gate.state for gate in stage.gates] for stage in architecture(changed, SHAPE).stages}
        assert stages == {"enc": ["open"], "bottom": [state, "open"], "dec": ["open"]}


def test_the_block_is_made_of_the_real_layers(small, drawn):
    block = drawn.block
    assert (block.path, block.type, block.grid, block.channels) == (
        "dec1.blocks.0.first", "FHEATBlock", (28, 28, 20), 24,
    )  # fmt: skip
    assert block.groups == {"fheat": "FHEAT", "mixer": "KAN3D"}
    layers = [step for step in block.steps if step.kind and step.gate is None]
    module = small.get_submodule(block.path)
    assert {step.name for step in layers} == {
        name for name, part in module.named_modules() if not list(part.children())
    }
    for step in layers:
        layer = module.get_submodule(step.name)
        assert step.kind == ("Conv3d" if isinstance(layer, nn.Conv3d) else type(layer).__name__)
        if isinstance(layer, nn.Conv3d):
            assert (step.taken, step.channels) == (layer.in_channels, layer.out_channels)
            assert (step.kernel, step.groups) == (layer.kernel_size, layer.groups)


def test_the_dataflow_of_the_block(drawn):
    """[v, g] = W_p(DWConv(x)); y = W_out(SiLU(g) GN(T(v))); x + GN(y), then x + GN(mixer(x))."""
    steps = drawn.block.steps
    at = {step.name: number for number, step in enumerate(steps) if step.name not in ("add",)}
    gate = steps[at["dec1"]]
    assert gate.gate.site == "dec1"
    assert gate.gate.D > 0
    assert gate.group == "fheat"
    assert gate.sources == steps[at["silu"]].sources == (at["chunk"],)
    assert steps[at["mul"]].sources == (at["silu"], at["fheat.norm"])
    assert steps[at["fheat.out"]].sources == (at["mul"],)
    first, second = (number for number, step in enumerate(steps) if step.name == "add")
    assert steps[first].sources == (-1, at["fheat_norm"])
    assert steps[second].sources == (first, at["mixer_norm"])
    assert second == len(steps) - 1
    assert [step.name for step in steps if step.group == "mixer"] == ["mixer.0", "mixer.1", "mixer.2", "mixer.3"]


def test_the_block_of_another_stage_and_another_mixer():
    model = create_model("fheat_seg", patch_size=(32, 32, 32), mixer="gelu", kan_ratio=2)
    block = architecture(model, block="enc2.blocks.1.second").block
    assert (block.channels, block.grid, block.groups["mixer"]) == (48, (4, 4, 4), "GELUMixer")
    widths = [(step.taken, step.channels) for step in block.steps if step.group == "mixer"]
    assert widths == [(48, 96), (96, 96), (96, 48)]
    assert [step.name for step in block.steps if step.gate] == ["enc2"]
    with pytest.raises(ValueError, match="block='enc9' is no module of several layers that runs: use one of stem, "):
        architecture(model, block="enc9")


def test_fheat_seg_l_has_one_stage_at_the_bottom():
    drawn = architecture(create_model("fheat_seg_l", patch_size=(48, 32, 32)))
    assert drawn.levels == (
        Level((48, 32, 32), 32), Level((24, 16, 16), 60), Level((12, 8, 8), 96), Level((6, 4, 4), 150),
        Level((3, 2, 2), 198),
    )  # fmt: skip
    assert [(stage.name, stage.block, len(stage.gates)) for stage in drawn.stages[:5]] == [
        ("enc1", "ConvBlock", 0), ("enc2", "ConvBlock", 0), ("enc3", "LightBlock", 1), ("enc4", "LightBlock", 1),
        ("bottom", "LightBlock", 1),
    ]  # fmt: skip
    assert [(skip.source, skip.target) for skip in drawn.skips] == [(f"enc{n}", f"dec{n}") for n in (4, 3, 2, 1)]
    assert drawn.learned_inputs == ()
    assert drawn.block.path == "dec3.blocks.0.first"


def test_light_unetr_has_no_gates_and_long_blocks_are_shown_part_by_part():
    drawn = architecture(create_model("light_unetr", patch_size=(32, 32, 32)))
    assert not any(stage.gates for stage in drawn.stages)
    assert [stage.channels for stage in drawn.stages[:4]] == [24, 48, 60, 96]
    assert drawn.block.path == "enc4.blocks.0"
    assert [step.name for step in drawn.block.steps] == [
        "depthwise", "add", "attentions.0", "add", "mixers.0", "add", "attentions.1", "add", "mixers.1", "add",
    ]  # fmt: skip
    assert [step.sources for step in drawn.block.steps[1::2]] == [(-1, 0), (1, 2), (3, 4), (5, 6), (7, 8)]


def test_any_u_of_stages():
    drawn = architecture(TinyU(), SHAPE)
    assert drawn.levels == (Level((8, 6), 4), Level((4, 3), 6))
    assert drawn.skips == (Skip("enc", "dec", "cat"),)
    assert [(stage.name, stage.blocks) for stage in drawn.stages] == [("enc", 1), ("bottom", 2), ("dec", 1)]
    assert (drawn.name, drawn.block.path) == ("TinyU", "dec.0")
    assert [(step.name, step.taken, step.channels) for step in drawn.block.steps] == [("0", 8, 4), ("dec.0.1", 4, 4)]


def test_other_networks_are_refused():
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 1, 3))
    with pytest.raises(ValueError, match=r"its direct children; its parts are 0 \(stem\), 1 \(head\): give a network"):
        architecture(plain, SHAPE)
    with pytest.raises(ValueError, match="shape is needed: TinyU does not say which input it is made for"):
        architecture(TinyU())

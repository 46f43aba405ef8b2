"""The documentation runs, and its numbers are the stored ones."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats

import fheat
from fheat.gates.cost import giga
from fheat.gates.probe import Finding, Probe
from fheat.ops.dct import CROSSOVERS
from fheat.studies.simulation import presentation as simulation_table
from fheat.studies.simulation.record import read_simulation
from fheat.system.machine import machine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_ratios_are_the_measured_ones():
    text = (ROOT / "docs" / "networks.md").read_text()
    rows = {
        "all gates open": "fheat_seg, all gates open",
        "all closed, not retired": "fheat_seg, all closed, not retired",
        "dec1 open, rest retired": "fheat_seg, dec1 open, rest retired",
        "GELU mixers, all retired": "fheat_seg, gelu mixer, all retired",
        "Light-UNETR": "light_unetr",
    }
    for row, name in rows.items():
        stored = [
            json.loads((ROOT / "benchmarks" / "results" / f"bypass-{device}.json").read_text())["ratio_to_retired"][
                name
            ]
            for device in ("cpu", "cuda")
        ]
        assert f"| {row} | {stored[0]:.2f} | {stored[1]:.2f} |" in text


def test_readme_names_how_much_longer_the_peer_takes():
    results = ROOT / "benchmarks" / "results"
    readme = (ROOT / "README.md").read_text().replace("\n", " ")
    scan = json.loads((results / "scan-cpu.json").read_text())["scan_s"]
    assert f"{scan['light_unetr'] / scan['auto']:.1f} times as long for a scan on two CPU threads" in readme
    gpu = [
        json.loads((results / f"bench-window-{name}-cuda.json").read_text())["results"]["window"]["ratio"][
            "light_unetr"
        ]
        for name in ("fp32", "bf16")
    ]
    assert f"{gpu[0]:.1f} times as long for a window on an NVIDIA H200 in float32 and {gpu[1]:.1f} times" in readme


def test_targets_of_a_scan_on_a_cpu():
    stored = json.loads((ROOT / "benchmarks" / "results" / "scan-cpu.json").read_text())
    ratios, share = stored["ratios_of_auto"], stored["transform"]["share"]
    assert ratios["to torch"] <= 0.6
    assert ratios["to light_unetr"] <= 0.45
    assert ratios["to segresnet_16, from its windows"] <= 1 / 25
    assert ratios["fast windows to auto"] <= 0.2
    assert share["torch"] <= 0.1
    assert share["openvino"] <= 0.1


def test_targets_of_a_training_step():
    stored = json.loads((ROOT / "benchmarks" / "results" / "step-cuda.json").read_text())
    assert min(speed for name, speed in stored["per_second"].items() if name.startswith("fused")) >= 60
    apart = stored["distance"]
    assert apart["fused bfloat16 from plain bfloat16"]["first_ten"] < 1e-3
    plain, fused = (apart[f"{name} bfloat16 from plain float32"]["mean"] for name in ("plain", "fused"))
    assert fused <= 1.5 * plain
    text = (ROOT / "docs" / "training.md").read_text()
    for name, speed in (("plain PyTorch, captured", "plain"), ("fused, all gates open", "fused, all gates open")):
        assert f"| {name} | {stored['per_second'][speed]:.1f} |" in text


def test_targets_of_scans_on_a_gpu():
    stored = json.loads((ROOT / "benchmarks" / "results" / "scans-cuda.json").read_text())
    assert stored["scans"] == 20
    assert stored["windows"] > 1000
    assert max(stored["seconds"][1:]) <= 3
    assert stored["dice"]["least"] >= 0.999
    text = (ROOT / "docs" / "inference.md").read_text()
    assert f"{stored['windows']:,} windows in {min(stored['seconds']):.1f} s" in text


def test_targets_of_the_survivors_transform_on_a_gpu():
    results = ROOT / "benchmarks" / "results"
    for name in ("fp32", "bf16"):
        ratio = json.loads((results / f"bench-window-{name}-cuda.json").read_text())["results"]["window"]["ratio"]
        assert ratio["fheat_seg/survivor"] <= 1.1
    for times in json.loads((results / "fused-transform-cuda.json").read_text())["milliseconds"].values():
        assert max(times["kernels"], times["kernels, spectrum kept"]) < 0.7 * times["library"]


def test_a_fused_run_is_not_below_a_plain_one():
    stored = json.loads((ROOT / "benchmarks" / "results" / "la-4-fused-cuda.json").read_text())["runs"]
    text = (ROOT / "docs" / "training.md").read_text()
    for name, said in (
        ("fused-seed0", "kernels, seed 0"),
        ("fused-seed1", "kernels, seed 1"),
        ("earlier-fused-seed0", "earlier kernels, seed 0"),
        ("plain-seed0", "plain PyTorch, seed 0"),
    ):
        run = stored[name]
        curve = {int(iteration): score for iteration, score in run["validation"].items()}
        assert max(curve) == 16_000
        settled = [score for iteration, score in curve.items() if iteration >= 4000]
        opened = {site: gate["D"] for site, gate in run["gates"].items() if gate["closed_after"] is None}
        row = [
            said,
            f"{run['best']['dice']:.4f}",
            f"{run['best']['iteration']:,}",
            f"{curve[16_000]:.4f}",
            f"{statistics.mean(settled):.4f} ({statistics.stdev(settled):.4f})",
            ", ".join(f"{site} {strength:.2f}" for site, strength in opened.items()),
        ]
        assert f"| {' | '.join(row)} |" in text
    fused, plain = stored["fused-seed0"], stored["plain-seed0"]
    assert fused["best"]["dice"] >= plain["best"]["dice"]
    apart = scipy.stats.wilcoxon(list(fused["cases"].values()), [plain["cases"][case] for case in fused["cases"]])
    assert f"p = {apart.pvalue:.2f}, Wilcoxon" in text
    speed = json.loads((ROOT / "benchmarks" / "results" / "step-cuda.json").read_text())["per_second"]["plain"]
    assert f"at the speed below takes {16_000 / speed / 60:.0f} minutes" in text


@pytest.mark.parametrize("name", fheat.list_models())
def test_sizes_are_what_the_counter_prints(name):
    at = {patch: fheat.cost(fheat.create_model(name, patch_size=patch)) for patch in ((112, 112, 80), (96, 96, 96))}
    la, cube = at.values()
    cells = [f"{la.parameters:,}"]
    for counted in (la, cube):
        cells += [f"{giga(counted.macs)} G", f"{giga(counted.rest)} G" if counted.transform else ""]
    lines = (ROOT / "docs" / "networks.md").read_text().split("## Sizes and times")[1].splitlines()
    row = next(line for line in lines if line.startswith(f"| `{name}`"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == cells
    if name.startswith("fheat"):
        readme = (ROOT / "README.md").read_text().replace("\n", " ")
        assert cells[0] in readme
        assert f"{giga(la.rest)} G" in readme


def test_readme_names_the_margin_of_every_stored_demo():
    stored = json.loads((ROOT / "benchmarks" / "results" / "demo-cpu.json").read_text())
    text = (ROOT / "README.md").read_text()
    assert stored["seeds"] == [row["seed"] for row in stored["by_seed"]] == [0, 1, 2]
    for row, result in zip(stored["by_seed"], stored["results"], strict=True):
        assert result["retired_equal"] is result["loaded_equal"] is True
        assert row["margin"] == result["margin"] == row["cse"] - row["supervised"]
        states = [gate["state"] for gate in result["gates"]]
        assert states.count("retired") == row["gates_closed"]
        scores = f"{row['cse']:.4f} | {row['supervised']:.4f} | {row['margin']:+.4f}"
        assert f"| {row['seed']} | {scores} | {row['gates_closed']} of {len(states)} |" in text
    wins = sum(row["margin"] > 0 for row in stored["by_seed"])
    assert wins == 3
    assert f"CSE wins {wins} of 3, {stored['mean_margin']:+.4f} on average" in text.replace("\n", " ")
    first = stored["by_seed"][1]  # the demo's own seed
    shown = f"CSE {first['cse']:.4f}, supervised-only {first['supervised']:.4f}, margin {first['margin']:+.4f}"
    assert shown in text
    assert f"orientation: {first['new_scan_dice']:.4f}" in text


def test_training_page_names_the_stored_runs_on_la():
    stored = json.loads((ROOT / "benchmarks" / "results" / "la-4-cuda.json").read_text())
    text = (ROOT / "docs" / "training.md").read_text()
    runs = stored["runs"]
    for run in runs.values():
        opened = {site: gate["D"] for site, gate in run["gates"].items() if gate["closed_after"] is None}
        shown = ", ".join(f"{site} {strength:.2f}" for site, strength in opened.items()) or "none"
        assert f"| {run['validation']['1000']:.4f} | {run['best']['dice']:.4f} | {shown} |" in text
        if not {"warm_up", "clip"} & run["settings"].keys():
            assert "dec1" in opened
    long = runs["seed0-16000"]
    readme = (ROOT / "README.md").read_text().replace("\n", " ")
    assert f"an earlier run {long['best']['dice']:.4f}" in readme
    later = json.loads((ROOT / "benchmarks" / "results" / "la-4-fused-cuda.json").read_text())
    best = later["runs"]["fused-seed0"]["best"]["dice"]
    assert f"take {later['wall_seconds']:.0f} s on an NVIDIA H200 and reach a validation Dice of {best:.4f}" in readme
    assert f"takes {later['wall_seconds']:.0f} s" in text
    assert f"{later['runs']['fused-seed0']['per_second']:.1f} iterations per second" in text
    assert long["best"]["dice"] >= 0.9
    assert long["validation"]["16000"] >= 0.9
    assert long["per_second"] >= 12.6
    assert f"took {stored['wall_seconds']:.0f} s" in text
    assert f"{long['per_second']:.1f} iterations per second" in text
    for name in ("seed1", "seed2", "seed3", "labelled-seed0", "labelled-seed1"):
        assert runs[name]["settings"]["iterations"] == 4000
        assert runs[name]["best"]["dice"] > 0.85


def test_zoo_page_names_what_its_model_reached_on_a_cpu():
    stored = json.loads((ROOT / "benchmarks" / "results" / "zoo-la-4-cpu.json").read_text())["summary"]["1"]
    found = {name: metric["mean"] for name, metric in stored["metrics"].items()}
    text = (ROOT / "docs" / "zoo.md").read_text().replace("\n", " ")
    assert f"Dice {found['dice']:.4f}, Jaccard {found['jaccard']:.4f}, 95HD {found['hd95']:.2f} mm" in text
    assert f"ASD {found['asd']:.2f} mm" in text
    assert abs(found["dice"] - fheat.load("la-4").card.metrics["validation_dice"]) < 1e-4


def test_analyses_page_names_what_was_measured_on_la():
    stored = json.loads((ROOT / "benchmarks" / "results" / "analysis-la-4-cpu.json").read_text())
    text = (ROOT / "docs" / "analyses.md").read_text()
    (model,) = stored["analysis"]["summary"]
    seg, peer = stored["fresh"]

    def percent(found):
        return f"{100 * found['mean']:.1f} ({100 * found['sd']:.1f})"

    for row, found in (
        ("`la-4`", model),
        ("`la-4`, the four FHEAT blocks inside these light blocks", stored["fheat_blocks"]),
        ("FHEAT-Seg, fresh weights", seg),
        ("Light-UNETR, fresh weights", peer),
    ):
        assert f"| {row} | {percent(found['residual_share_above'])} |" in text
        if "attention_share" in found:
            chance, ratio = found["attention_chance"]["mean"], found["attention_over_chance"]["mean"]
            assert f"| {row} | {percent(found['attention_share'])} | {100 * chance:.1f} | {ratio:.2f} |" in text
    assert f"| white noise | {100 * model['residual_white_noise']:.1f} |" in text
    ratios = [case["over_chance"] for case in stored["analysis"]["models"][0]["attention"]["cases"]]
    assert min(ratios) > 1
    assert f"by a factor of {min(ratios):.1f} to {max(ratios):.1f}" in text
    factor = seg["residual_share_above"]["mean"] / peer["residual_share_above"]["mean"]
    assert f"differ by a factor of {factor:.0f}" in text
    assert f"(nearest: {100 * stored['nearest']['attention_share']['mean']:.1f} %)" in text
    shares = [f"{100 * share:.1f} %" for share in stored["other_readings_of_attention"].values()]
    places = [text.replace("\n", " ").find(share) for share in shares]
    assert -1 not in places
    assert stored["command"] in text


def test_inference_page_names_the_measured_memory_and_growth():
    stored = json.loads((ROOT / "benchmarks" / "results" / "inference-cpu.json").read_text())
    large = stored["volumes"][-1]
    assert large["shape"] == [512, 512, 600]
    assert large["peak_over_bound"] <= 1.1
    assert 0.8 < stored["exponent_of_time_over_voxels"] < 1.2
    assert f"takes {large['peak_bytes'] / 1e9:.1f} GB" in (ROOT / "README.md").read_text()
    text = (ROOT / "docs" / "inference.md").read_text()
    assert f"| {large['bound_bytes'] / 2**20:,.0f} MiB | {large['peak_bytes'] / 2**20:,.0f} MiB |" in text
    assert f"grows with voxels to the power {stored['exponent_of_time_over_voxels']:.2f}" in text.replace("\n", " ")


def test_inference_page_names_the_measured_agreement_of_masks():
    stored = json.loads((ROOT / "benchmarks" / "results" / "scan-cpu.json").read_text())["agreement"]
    openvino, fast = stored["dice"]["openvino"], stored["dice"]["fast windows"]
    assert openvino["least"] >= 0.999
    assert fast["mean"] >= 0.99
    text = (ROOT / "docs" / "inference.md").read_text().replace("\n", " ")
    assert f"mean Dice of {openvino['mean']:.4f} with those of torch" in text
    share = 100 * stored["fast windows"]["share of the windows"]
    assert f"{share:.0f} % of the windows, {fast['mean']:.4f} (least {fast['least']:.4f})" in text


def test_operator_page_names_the_measured_crossovers():
    text = (ROOT / "docs" / "operator.md").read_text()
    (cpu_split, cpu_fft), (cuda_split, cuda_fft) = CROSSOVERS["cpu"], CROSSOVERS["cuda"]
    assert f"| below {cpu_split} | below {cuda_split} |" in text
    assert f"| {cpu_split} to {cpu_fft - 1} | {cuda_split} to {cuda_fft - 1} |" in text
    assert f"| from {cpu_fft} | from {cuda_fft} |" in text


def test_operator_page_names_the_measured_price_of_the_split():
    text = (ROOT / "docs" / "operator.md").read_text()
    for device, words in (
        ("cpu", "forward, measured {} to {} times slower on two CPU threads"),
        ("cuda", "{} to {} times on an H200"),
    ):
        stored = json.loads((ROOT / "benchmarks" / "results" / f"transforms-{device}.json").read_text())["gate"]
        ratios = [case["forward"]["split"] / case["forward"]["product"] for case in stored.values()]
        assert words.format(f"{min(ratios):.1f}", f"{max(ratios):.1f}") in text.replace("\n", " ")


def test_metrics_page_names_the_measured_speed_up():
    stored = json.loads((ROOT / "benchmarks" / "results" / "surface-cpu.json").read_text())["results"]["512x512x200"]
    assert stored["ratio"] > 10
    assert stored["largest_difference"] < 1e-6
    text = (ROOT / "docs" / "metrics.md").read_text().replace("\n", " ")
    assert f"medpy takes {stored['ratio']:.0f} times as long" in text


def test_benchmarks_page_names_the_stored_ratios_and_exponents():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    stored = json.loads((ROOT / "benchmarks" / "results" / "bench-cpu.json").read_text())
    window = stored["results"]["window"]
    for name, ratio in window["ratio"].items():
        assert f"| `{name}` | {giga(window['macs'][name])} G | {ratio:.2f} |" in text
    assert not stored["not_available"]
    grown = json.loads((ROOT / "benchmarks" / "results" / "bench-growth-cpu.json").read_text())
    for name, power in grown["results"]["sizes"]["exponent"].items():
        assert f"| `{name}` | {power:.2f} |" in text
        assert 0.5 < power < 1.15
    assert f"channels to the power {grown['results']['channels']['exponent']:.2f}" in text.replace("\n", " ")
    for record in (stored, grown):
        assert record["command"] in text


def stored_simulation(name):
    record, _ = read_simulation(ROOT / "benchmarks" / "results" / f"{name}.json")
    assert set(record.machine) == set(machine())
    return record


def spread(control):
    return simulation_table.span((run.sd for run in control.interchangeable.runs), ".4f")


def test_simulation_page_names_the_stored_results():
    stored = stored_simulation("simulation-cpu")
    assert stored.command == "fheat simulate"
    assert stored.seconds < 60
    lines = (ROOT / "docs" / "simulation.md").read_text()
    text = " ".join(lines.split())
    even, planted, remark = stored.interchangeable, stored.differentiated, stored.remark_3
    for run in even.runs:
        assert 0.245 < run.mean < 0.252
        assert run.sd < 0.02
    span, runs = simulation_table.span, planted.runs
    mean = span((run.mean for run in even.runs), ".4f")
    pairings, strengths = (simulation_table.planted_values(runs, field) for field in ("pairing", "D"))
    apart = max(abs(value - run.best) for value, run in zip(strengths, runs, strict=True))
    assert f"| (a) mean D of eight interchangeable gates | {mean} | {even.exact:.4f} |" in lines
    assert f"| (a) their SD, over 5 seeds | {spread(stored)} |" in lines
    assert simulation_table.idle_values(runs, "pairing") == simulation_table.idle_values(runs, "D") == [0.0] * 280
    assert f"before training | {span(pairings, '.0f')} |" in lines
    assert f"after it | {planted.idle_closed} of {planted.idle} |" in lines
    assert f"after it | {span(strengths, '.3f')} | best fit, within {apart:.1e} |" in lines
    assert f"| {planted.predicted} of {planted.sites} |" in lines
    assert f"| {remark.even:.4f} / {remark.concentrated:.4f} |" in lines
    for name, control in stored.controls.items():
        assert f"| {' | '.join(simulation_table.control_cells(name, control))} |" in lines, name
    start = span((run.start_sd for run in even.runs), ".4f")
    assert f"that of the start ({start})" in text
    without = stored.controls["no weight decay"]
    assert f"Without it the SD is {spread(without)}, with it {spread(stored)}." in text
    uneven, undecayed = (stored.controls[name] for name in ("uneven start", "uneven start, no weight decay"))
    begun = span((run.start_sd for run in uneven.interchangeable.runs), ".4f")
    assert f"SD {begun}) the SD ends at {spread(uneven)} with weight decay and {spread(undecayed)} without" in text


def test_simulation_page_names_the_stored_longer_run():
    stored = stored_simulation("simulation-long-cpu")
    assert stored.settings.iterations == 60_000
    text = " ".join((ROOT / "docs" / "simulation.md").read_text().split())
    assert f"`{stored.command}`" in text
    controls = stored.controls
    assert f"SD is {spread(stored)} with weight decay and {spread(controls['no weight decay'])} without" in text
    uneven = [spread(controls[name]) for name in ("uneven start", "uneven start, no weight decay")]
    assert f"from the uneven start {uneven[0]} and {uneven[1]}" in text
    assert stored.differentiated.predicted == 320


def test_example_trains_and_retires():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "classifier_2d.py")], capture_output=True, text=True, check=True
    )
    assert "retired network equal bit for bit: True" in done.stdout
    assert float(re.search(r"accuracy (\d\.\d+)", done.stdout)[1]) > 0.9
    states = re.findall(r"gates\.\d .*(open|retired)", done.stdout)
    assert "open" in states
    assert "retired" in states


def test_probe_page_shows_the_stored_run():
    stored = json.loads((ROOT / "benchmarks" / "results" / "probe-la-4-cpu.json").read_text())
    found = Probe([Finding(**row) for row in stored["gates"]])
    text = (ROOT / "docs" / "probe.md").read_text()
    words = f"--data {stored['data']} --labelled {stored['labelled']} --batches {stored['batches']}"
    shown = "\n".join(f"    {line}" for line in str(found).split("\n"))
    assert f"$ fheat probe {stored['model']} {words}\n\n{shown}\n" in text
    assert f"{sum(row.agrees for row in found)} of {len(found)} sites are as predicted" in text
    ranked = sorted(found, key=lambda row: row.pairing)
    assert [row.site for row in ranked[-2:]] == [row.site for row in found if row.state == "open"] == ["enc1", "dec1"]
    assert [row.site for row in found if not row.agrees] == ["enc3", "enc4"]
    assert all(row.pairing < 1e-3 * found["dec1"].pairing for row in found if not row.agrees)


def test_example_of_a_residual_network_finds_the_noisy_stem():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "instrument_resnet_2d.py")], capture_output=True, text=True, check=True
    )
    assert "retired network equal bit for bit: True" in done.stdout
    strengths = {name: float(value) for name, value in re.findall(r"^(\w+_stem) +\S+ +\d+ +(\S+)", done.stdout, re.M)}
    assert strengths["noisy_stem"] > 0.3
    assert strengths["mask_stem"] == 0.0
    without, with_gates = map(float, re.search(r"error (\S+) without gates, (\S+) with", done.stdout).groups())
    assert with_gates < 1.02 * without < 0.2


def test_example_of_a_monai_network_probes_it_and_trains_on():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "instrument_monai_unet.py"), "--steps", "60"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "closed gates change no bit: True" in done.stdout
    wanted, of = map(int, re.search(r"error at (\d+) of (\d+) sites", done.stdout).groups())
    assert of == 9
    trained = done.stdout.split("training goes on with gates there")[1]
    assert len(re.findall(r"^model\..* (?:open|closed) +\d", trained, re.M)) == wanted

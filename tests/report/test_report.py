"""The report of a run: every figure is there, its numbers are the log's, the page needs nothing else."""

import json
import math
import re
import shutil
from html.parser import HTMLParser

import pytest

from fheat import allocation, cost, load, retire
from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.figures.page import PageSection, figure, page, paragraph, planes, table
from fheat.gates.cost import giga
from fheat.networks.registry import model_options
from fheat.report.curves import losses, means, response
from fheat.report.gates import summary
from fheat.report.write import Opening, write_report
from fheat.training.log import from_line
from fheat.training.runs import read_history
from fheat.training.settings_sources import dotted_names
from tests.training.helpers import SMALL_WORDS, Run, settings_of

VOID = {"meta", "wbr", "img", "br"}


class Reader(HTMLParser):
    """Checks that what opens closes, and collects text, identifiers and references."""

    def __init__(self, content):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.tags, self.references, self.words = [], [], [], [], []
        self.tables, self.cells = [], None
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset") or "url(" in (value or ""):
                self.references.append(value)
            assert not name.startswith("on")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    return Reader(path.read_text())


@pytest.fixture(scope="module")
def report(finished, tmp_path_factory):
    return write_report(finished, tmp_path_factory.mktemp("out") / "page.html")


def logged(folder):
    return [from_line(line, checked=True) for line in (folder / "log.jsonl").read_bytes().splitlines()]


def test_every_section_and_figure_is_there_the_allocation_first(report):
    content, reader = report.read_text(), read(report)
    headings = re.findall(r"<h2>(.*?)</h2>", content)
    assert headings == [
        "Allocation", "Gates", "Cost before and after retirement", "Training and metrics", "Validation scans",
        "Settings and versions",
    ]  # fmt: skip
    assert reader.tags.count("svg") == 5  # losses, validation, D, alpha, responses
    assert reader.tags.count("figure") == reader.tags.count("figcaption") == 6  # and one validation scan
    assert reader.tags.count("img") == 3
    for name in ("losses", "validation", "D", "alpha", "responses"):
        assert any(found.startswith(f"{name}-") for found in reader.ids)


def test_a_page_may_begin_with_more_than_the_run_and_show_its_best_network(finished, tmp_path):
    opening = Opening("A larger story", "It ended well.", [PageSection("Result", paragraph("Dice 0.9"))])
    page = write_report(finished, tmp_path / "page.html", opening=opening, network="best", scans=0).read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page)[:2] == ["Result", "Allocation"]
    assert "Validation scans" not in page
    assert "<h1>A larger story</h1>" in page
    assert '<p class="summary">It ended well.</p>' in page
    assert "Read from the network in best, saved at iteration" in page


def test_terms_are_explained_where_they_stand(report):
    section = report.read_text().split("<h2>Allocation</h2>")[1].split("</section>")[0]
    explained = section.split("<table>")[0]
    for words in ("A gate mixes", "D is its strength, alpha its order, and tau = D^alpha", "To retire a closed gate"):
        assert words in explained


def test_the_page_needs_nothing_else(report):
    content, reader = report.read_text(), read(report)
    assert not {"script", "link", "iframe", "object", "base"} & set(reader.tags)
    for reference in reader.references:
        local = re.findall(r"url\(([^)]*)\)", reference) or [reference]
        assert all(one.startswith(("#", "data:image/png;base64,")) for one in local), reference[:60]
    assert not re.search(r"https?://|@import", content)
    assert len(reader.ids) == len(set(reader.ids))
    named = set(reader.ids)
    assert {one[1:] for one in re.findall(r'(?:href="|url\()(#[\w.-]+)', content)} <= named
    for needed in ('name="viewport"', "prefers-color-scheme: dark", "overflow-x: auto", "max-width: 100%"):
        assert needed in content
    assert "currentColor" in content
    assert "#010203" not in content


def test_numbers_are_those_of_the_log_and_the_model(finished, report):
    lines, reader = logged(finished), read(report)
    steps = [line for line in lines if "total" in line]
    validations = [line for line in lines if "validation" in line]
    assert (
        f"total, was {steps[0]['total']:.4f} at iteration 1 and is {steps[-1]['total']:.4f} at iteration 6"
        in reader.text
    )
    for name in ("supervised", "consistency", "mix", "accepted"):
        assert f"{name} {steps[-1][name]:.4f}" in reader.text
    best = max(validations, key=lambda line: line["validation"])
    assert f"Best {best['validation']:.4f} at iteration {best['iteration']}" in reader.text
    assert f"{validations[-1]['validation']:.4f} at iteration 6" in reader.text
    model = load(finished / "final")
    gates = allocation(model)
    rows = {row[0]: row for row in reader.tables[0][1:]}
    assert list(rows) == [gate.site for gate in gates]
    for gate in gates:
        strength, tau = ("0", "0") if gate.state == "closed" else (f"{gate.D:.4f}", f"{gate.tau:.4f}")
        assert steps[-1][f"D.{gate.site}"] == pytest.approx(gate.D, abs=1e-6)
        assert rows[gate.site][3:6] == [strength, f"{gate.alpha:.4f}", tau]
        assert rows[gate.site][1] == gate.state
        assert f"{gate.site} {steps[-1][f'alpha.{gate.site}']:.4f}" in reader.text
        if gate.state == "open":
            assert f"{gate.site} with D = {gate.D:.4f}" in reader.text
            assert f"{gate.site} keeps {math.exp(-((gate.D * math.pi) ** gate.alpha)):.1%}" in reader.text
        else:
            at = next(line["iteration"] for line in steps if line[f"D.{gate.site}"] == 0)
            assert rows[gate.site][2] == str(at)
            assert f"{gate.site} at iteration {at}" in reader.text
    assert {gate.state for gate in gates} == {"open", "closed"}  # else half of the above was not looked at
    after = cost(retire(model))
    assert reader.tables[1][2][1:3] == [f"{after.parameters:,}", f"{giga(after.macs)} G"]
    assert after.counter in reader.text
    scores = {row[0]: row[1:] for row in reader.tables[2][1:]}
    assert scores.pop("mean") == [f"{best['validation']:.4f}", f"{validations[-1]['validation']:.4f}"]
    assert scores == {
        case: [f"{best['cases'][case]:.4f}", f"{score:.4f}"] for case, score in validations[-1]["cases"].items()
    }
    settings = dict(reader.tables[3][1:])
    assert settings["optimiser.learning_rate"] == "0.1"
    assert settings.keys() == set(dotted_names("cse")) - {f"network.{name}" for name in model_options("fheat_seg")}
    assert "torch" in dict(reader.tables[4][1:])


def test_the_summary_says_what_closed_what_it_saves_and_what_it_reached(finished, report):
    record, model = read_history(finished), load(finished / "final")
    words = re.search(r'<p class="summary">(.*?)</p>', report.read_text())[1]
    closed = [site for site in record.sites if record.closed_at(site) is not None]
    idle = [gate.site for gate in allocation(model) if gate.grid == (1, 1, 1)]
    assert idle == ["enc2"]
    still = [site for site in idle if site not in closed]
    aside = f", {len(still)} has nothing to mix" if still else ""
    assert words.startswith(f"{len(closed)} of 3 gates closed for good{aside}; ")
    assert "a single voxel: enc2." in read(report).text
    assert set(record.survivors) == set(record.sites) - set(closed)
    for site in set(record.survivors) - set(idle):
        assert re.search(rf"\b{site}\)? (kept )?D = {record.steps[-1][f'D.{site}']:.4f}", words)
    saved = 1 - cost(retire(model)).macs / cost(model.spec.build()).macs
    assert f"retiring the closed ones saves {saved:.1%} of the multiply-adds" in words
    best = max(found.mean for found in record.validations)
    assert f"validation Dice {best:.4f} at best, {record.validations[-1].mean:.4f} at iteration 6." in words


@pytest.mark.parametrize(
    ("strengths", "words"),
    [
        ({"enc1": 0, "dec1": 0.5}, "1 of 2 gates closed for good; Block_Final (dec1) kept D = 0.5000."),
        ({"enc1": 0, "dec1": 0}, "All 2 gates closed for good."),
        ({"enc1": 1, "dec1": 0.5}, "None of 2 gates closed for good."),
        (
            {"enc1": 1, "enc2": 0, "dec1": 0.5},
            "1 of 3 gates closed for good; enc1 kept D = 1.0000 and Block_Final (dec1) D = 0.5000.",
        ),
        ({}, "Fheat_seg has no gates."),
    ],
)
def test_the_summary_of_a_log_alone(run, strengths, words):
    gates = {f"D.{site}": float(value) for site, value in strengths.items()} | {
        f"alpha.{site}": 0.5 for site in strengths
    }
    config = (run / "config.toml").read_text().partition("# sha256")[0]
    (run / "config.toml").write_text(config.replace('name = "miniature"', 'name = "fheat_seg"'))
    write_lines(run, {"iteration": 1, "total": 1.0} | gates)
    assert summary(read_history(run)) == words


def test_the_slices_have_both_contours_and_the_dice_of_the_prediction(finished, report):
    from fheat import Predictor, evaluate
    from fheat.data.layouts import open_dataset
    from fheat.data.read import read_image, read_label

    data = read_history(finished).settings.data.folder
    (case,) = open_dataset(data).split("validation")
    mask, label = Predictor(finished / "final").segment(read_image(case)), read_label(case)
    words = f"{case.id}: prediction in orange, reference in blue. Dice on the scan's own grid: left_atrium "
    assert words + f"{evaluate(mask.data, label.data).dice:.4f}" in read(report).text


def test_the_same_run_gives_the_same_bytes(finished, report, tmp_path):
    assert write_report(finished, tmp_path / "again.html").read_bytes() == report.read_bytes()


def test_a_run_that_is_still_going_is_reported_from_what_is_there(run, capsys):
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "best")
    lines = [line for line in (run / "log.jsonl").read_text().splitlines(keepends=True) if "total" in line]
    (run / "log.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # the third is being written
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\n"
    reader = read(run / "report.html")
    assert "Iteration 2 of 6, not finished" in reader.text
    assert "Read from the log at iteration 2" in reader.text
    assert "The run has not been validated." in reader.text
    assert reader.text.count("The run has not saved a network yet.") == 2
    second = json.loads(lines[1])
    rows = {row[0]: row for row in reader.tables[0][1:]}
    assert reader.tables[0][0] == ["site", "state", "closed at", "D", "alpha", "tau"]  # a log knows no grids
    assert rows["enc1"][3:5] == [f"{second['D.enc1']:.4f}", f"{second['alpha.enc1']:.4f}"]


def test_before_the_end_the_best_network_so_far_is_shown_and_without_its_dataset_no_slices(run):
    shutil.rmtree(run / "final")
    config = (run / "config.toml").read_text().partition("# sha256")[0]
    (run / "config.toml").write_text(re.sub(r'folder = ".*"', 'folder = "gone"', config))
    reader = read(write_report(run))
    assert "Read from the network in best, saved at iteration" in reader.text
    assert "img" not in reader.tags
    assert "Left out, because the dataset of the run cannot be read: gone: does not exist" in reader.text


def test_scans_that_the_network_cannot_segment_are_left_out(run, tmp_path):
    data = shutil.copytree(read_history(run).settings.data.folder, tmp_path / "scans")
    settings = json.loads((data / "dataset.json").read_text())
    for path in (data / "imagesTr").glob("*_0000.nii.gz"):
        shutil.copy(path, path.with_name(path.name.replace("_0000", "_0001")))
    (data / "dataset.json").write_text(json.dumps(settings | {"channel_names": {"0": "MR", "1": "MR again"}}))
    config = (run / "config.toml").read_text().partition("# sha256")[0]
    (run / "config.toml").write_text(re.sub(r'folder = ".*"', f"folder = {json.dumps(str(data))}", config))
    assert main(["report", str(run)]) == 0
    reader = read(run / "report.html")
    assert "Left out, because the network cannot segment them: " in reader.text
    assert "img" not in reader.tags


@pytest.mark.slow
def test_a_network_without_gates_has_a_report_too(tmp_path):
    write_phantoms(tmp_path / "scans", 3, test=0, shape=(34, 34, 34))
    settings = {"patch_size": (32, 32, 32), "iterations": 1, "network": "light_unetr", "method": "supervised"}
    Run(settings_of(data=str(tmp_path / "scans"), **settings), tmp_path / "run", device="cpu").train()
    reader = read(write_report(tmp_path / "run", scans=0))
    assert "light_unetr has no gates." in reader.text
    assert reader.tags.count("svg") == 2


STEP = {"iteration": 1, "total": 1.0, "D.x": 1.0, "alpha.x": 0.5}


def probe(site="x", **changes):
    found = {
        "pairing": 1.0,
        "error": 0.1,
        "slope": 1.0,
        "slope_error": None,
        "attenuation": 1.0,
    }
    return {"iteration": 0, "probe": {site: found | changes}}


def write_lines(run, *lines):
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: shutil.rmtree(run), "is not a run folder"),
        (lambda run: (run / "config.toml").unlink(), "is not a run folder: it has no config.toml"),
        (lambda run: (run / "log.jsonl").unlink(), "log.jsonl: is missing"),
        (lambda run: (run / "log.jsonl").write_text(""), "log.jsonl: holds no iteration yet"),
        (lambda run: (run / "log.jsonl").write_text("{}\n"), "log.jsonl: line 1 is not a line of a log"),
        (lambda run: (run / "log.jsonl").write_text('{"iteration": 1, "total": 2}\n{"iter\n'), "line 2 is not a line"),
        (lambda run: (run / "log.jsonl").write_text('{"iteration": 1, "total": "x"}\n'), "line 1 is not a line"),
        (lambda run: (run / "log.jsonl").write_text('{"iteration": 1, "validation": 1}\n'), "line 1 is not a line"),
        (lambda run: (run / "log.jsonl").write_text("[" * 9000 + "\n"), "line 1 is not a line"),
        (lambda run: write_lines(run, {"iteration": 1, "D.x": 1.0, "total": 1.0}), "line 1 is not a line"),
        (
            lambda run: write_lines(run, {"iteration": 1, "D.x": 1.0, "alpha.x": 1.0}),
            "line 1 is not a line of a log (a",
        ),
        (lambda run: write_lines(run, STEP, {"iteration": 2, "total": 1.0}), "line 2 is not a line of a log (D.x is"),
        (lambda run: write_lines(run, STEP, STEP | {"D.y": 1.0, "alpha.y": 1.0}), "line 2 is not a line of a log (D.y"),
        (lambda run: write_lines(run, STEP, STEP | {"iteration": 10**30}), "iteration is not in 1 to 6"),
        (
            lambda run: write_lines(run, STEP | {"iteration": -1}),
            "line 1 is not a line of a log (ValueError: iteration",
        ),
        (lambda run: write_lines(run, STEP | {"iteration": 0}), "iteration is not in 1 to 6"),
        (lambda run: write_lines(run, STEP, {"iteration": -1, "probe": {}}), "iteration is not in 0 to 6"),
        (lambda run: write_lines(run, STEP, {"iteration": 0, "probe": [1]}), "line 2 is not a line"),
        (lambda run: write_lines(run, STEP, {"iteration": 0, "probe": {"x": 1.0}}), "line 2 is not a line"),
        (lambda run: write_lines(run, STEP, probe(pairing=None)), "line 2 is not a line of a log (TypeError: a value"),
        (lambda run: write_lines(run, STEP, probe(slope="1")), "line 2 is not a line of a log (TypeError: a value"),
        (lambda run: write_lines(run, STEP, probe(error=True)), "line 2 is not a line of a log (TypeError: a value"),
        (lambda run: write_lines(run, STEP, probe(more=1.0)), "line 2 is not a line of a log (KeyError: 'a number of"),
        (lambda run: write_lines(run, STEP, {"iteration": 0, "probe": {"x": {"pairing": 1.0}}}), "a number of a probe"),
        (
            lambda run: write_lines(run, probe("y"), STEP),
            "the probe at iteration 0 has a gate that no iteration has, y",
        ),
        (lambda run: write_lines(run, probe()), "log.jsonl: holds no iteration yet"),
        (lambda run: (run / "log.jsonl").write_bytes(b"\xff\xfe\n"), "log.jsonl: is not text"),
        (lambda run: (run / "final" / "model.json").write_text("{}"), "model.json: is not a model description"),
    ],
)
def test_bad_input_is_one_line(run, capsys, damage, says):
    damage(run)
    assert main(["report", str(run)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert not (run / "report.html").exists()


def test_options(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path / "a" / "b.html"), "--scans", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "a" / "b.html")}
    assert "none were asked for" in read(tmp_path / "a" / "b.html").text
    assert main(["report", str(run), "--scans", "-1"]) == 2


def test_train_writes_the_report(finished, tmp_path, capsys):
    data = read_history(finished).settings.data.folder
    assert main(["train", data, *SMALL_WORDS, "--iterations", "1", "--out", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "run" / "report.html")
    assert "Iteration 1 of 1, finished" in read(tmp_path / "run" / "report.html").text


def test_closed_for_good_means_to_the_end(run):
    rows = [{"iteration": at, "total": 1.0, "D.a": d, "alpha.a": 0.5} for at, d in enumerate((1, 0, 2, 0, 0), start=1)]
    (run / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_history(run).closed_at("a") == 4
    (run / "log.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert read_history(run).closed_at("a") is None


def test_a_long_log_is_drawn_as_means(run):
    assert means([1, 2, 3, 4, 5], 2) == [1.5, 3.5, 5]
    assert means([1, 2, 3], 1) == [1, 2, 3]
    config = (run / "config.toml").read_text().partition("# sha256")[0]
    (run / "config.toml").write_text(config.replace("iterations = 6", "iterations = 5000"))
    write_lines(run, *({"iteration": at, "total": 2.0 + at % 2} for at in range(1, 5001)))
    drawn = losses(read_history(run))
    assert "was 3.0000 at iteration 1 and is 2.0000 at iteration 5,000. Drawn as means of 9 logged iterations." in drawn
    assert len(drawn) < 60_000


def test_words_are_escaped():
    evil = "<script>alert('x')</script> & \"quotes\""
    body = paragraph(evil) + table((evil,), [(evil,)]) + figure(planes([(evil, b"png")]), evil)
    content = page(evil, evil, [PageSection(evil, body)])
    assert "<script" not in content
    reader = Reader(content)
    assert reader.text.count(evil) == 8  # title, heading, lead, heading, paragraph, two cells, caption
    assert reader.tables == [[[evil], [evil]]]


def test_a_closed_gate_answers_with_one():
    assert response(0.0, 0.5, 3.0) == 1.0
    assert response(2.0, 0.5, 0.0) == 1.0
    assert response(0.5, 0.8, 2.0) == pytest.approx(math.exp(-1))


@pytest.mark.slow
def test_inside_the_network_where_it_is_asked_for(report, finished_fheat_seg, tmp_path):
    assert "Inside the network" not in read(report).text
    run = shutil.copytree(finished_fheat_seg, tmp_path / "run")
    page = read(write_report(run, tmp_path / "with.html", scans=0, inside=True, figures=tmp_path / "figures")).text
    assert "Inside the network" in page
    assert "a grid of one voxel has no frequency but the constant" in page
    assert "times as much as chance" in page
    assert {"residual.svg", "attention.svg"} <= {path.name for path in (tmp_path / "figures").iterdir()}
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "best")
    assert "Left out. Needs the network" in read(write_report(run, tmp_path / "none.html", scans=0, inside=True)).text

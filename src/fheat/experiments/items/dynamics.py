"""Fig. 4 and 5: gates over training, in SegFormer3D and in FHEAT-Seg, at the end, and after a perturbation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from fheat.experiments.items import scores
from fheat.experiments.items.inside import inside, scored_network
from fheat.experiments.items.presented import Presented, notes_on, published_sheet
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.row_result import RowResult
from fheat.experiments.sheet import NOTHING, Number
from fheat.figures.picture import Picture, picture_of
from fheat.figures.strengths import strengths_picture
from fheat.gates.table import allocation
from fheat.metrics.statistics import MeanAndDeviation, moments
from fheat.models.folder import load
from fheat.report.curves import orders, responses, strengths
from fheat.studies.inside.figures import residual_picture
from fheat.studies.inside.record import Residual
from fheat.studies.pairing import attenuation_figure
from fheat.studies.perturbation import gates_after, outcome_sentence, perturbation_marks, validation_sentence
from fheat.training.runs import RunHistory, read_history

Values = dict[str, MeanAndDeviation]


def present_dynamics(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return what each panel states beside the published number, and the panels of the runs that are done."""
    done = {result.plan.row.system: result for result in results if result.outcomes}
    logs = {system: read_history(scored_network(result, plan).parent) for system, result in done.items()}
    residuals: dict[str, Residual] = {
        system: _residual(done[system], plan) for system in ("fheat-seg", "light-unetr") if system in done
    }
    ours = quantities(logs, residuals)
    rows = {result.plan.row.system: result for result in results}
    numbers = tuple(
        Number("", name, published, ours.get(name, NOTHING), *_facts(rows.get(_system(name))))
        for name, published in item.published.items()
    )
    notes = [*notes_on(item, results, plan), *_sentences(logs)]
    pictures = tuple(_pictures(item, done, logs, plan))
    return Presented((published_sheet(item, numbers),), numbers, pictures, tuple(notes))


def _system(quantity: str) -> str:
    """Return what is trained for a quantity, whose name begins with its panel."""
    if "Light-UNETR" in quantity:
        return "light-unetr"
    return {"a": "ffn", "b": "ffn", "d": "fheat-seg", "f": "probed", "g": "noise", "h": "spike"}[quantity[1]]


def _facts(result: RowResult | None) -> tuple[str, str, str]:
    """Return iterations, scans and state of a row; one that was not asked for is not run."""
    return ("", "", "not run yet") if result is None else (result.iterations, result.scans, result.state)


def _residual(result: RowResult, plan: Plan) -> Residual:
    residual = inside(result, plan)[0].residual
    assert residual is not None
    return residual


def quantities(logs: Mapping[str, RunHistory], residuals: Mapping[str, Residual]) -> Values:
    """Return our numbers by the names of the published ones, as far as their runs are done."""
    found: Values = {}
    if log := logs.get("ffn"):
        found["(a) survivors"] = moments([len(log.survivors)])
        found["(b) alpha of the survivor"] = moments([log.steps[-1][f"alpha.{site}"] for site in _strongest(log)])
    for system, title in (("fheat-seg", "FHEAT-Seg"), ("light-unetr", "Light-UNETR")):
        if system in residuals:
            shares = [100 * share for share in residuals[system].shares]
            found[f"(d) residual above 0.6, {title}, %"] = moments(shares)
    if log := logs.get("probed"):
        found |= _attenuation(log)
    if log := logs.get("noise"):
        found |= _noise(log)
    if log := logs.get("spike"):
        opened = opened_after(log, log.settings.research.spike_at or 0)
        found["(h) closed gates that opened"] = moments([len(opened)])
    return found


def _attenuation(log: RunHistory) -> Values:
    """Return the part of the gradient that passes the open gate with the largest D, and that of closed gates."""
    found: Values = {}
    probes = list(log.probes.items())
    for site in _strongest(log):
        for when, (_, probe) in (("first", probes[0]), ("last", probes[-1])):
            if site in probe and isfinite(probe[site].attenuation):
                found[f"(f) gradient left at the survivor, {when}"] = moments([probe[site].attenuation])
    closed = [
        probe[site].attenuation
        for iteration, probe in probes
        for site in probe
        if (at := log.closed_at(site)) is not None and iteration >= at
    ]
    return found | {"(f) gradient left at closed gates": moments(list(filter(isfinite, closed)))}


def _strongest(log: RunHistory) -> list[str]:
    """Return the open gate with the largest D at the end, which is the survivor where several are open; or none."""
    return sorted(log.survivors, key=lambda site: -log.steps[-1][f"D.{site}"])[:1]


def opened_after(log: RunHistory, iteration: int) -> list[str]:
    """Return the gates that are closed at an iteration and open in any logged one after it."""
    earlier = [step for step in log.steps if step["iteration"] <= iteration]
    later = [step for step in log.steps if step["iteration"] > iteration]
    closed = [site for site in log.sites if earlier and earlier[-1][f"D.{site}"] == 0]
    return [site for site in closed if any(step[f"D.{site}"] != 0 for step in later)]


def _noise(log: RunHistory) -> Values:
    """Return how many closed gates the noise opened and how many went back, and the Dice before it and at the end."""
    at = log.settings.research.noise_at or 0
    gates = gates_after(log, at)
    before = [100 * validation.mean for validation in log.validations if validation.iteration <= at]
    return {
        "(g) closed gates opened by noise": moments([sum(gate.reopened for gate in gates)]),
        "(g) of these back at exactly 0": moments([sum(gate.reabsorbed for gate in gates)]),
        "(g) validation Dice before, %": moments(before[-1:]),
        "(g) validation Dice at the end, %": moments([100 * each.mean for each in log.validations[-1:]]),
    }


def _sentences(logs: Mapping[str, RunHistory]) -> list[str]:
    """Return what became of the gates and of the Dice after noise and spike, in words."""
    sentences = []
    for system, words in (("noise", "Noise"), ("spike", "Learning rate x 10")):
        if log := logs.get(system):
            at = log.settings.research.noise_at or log.settings.research.spike_at or 0
            sentences.append(f"{words}: {outcome_sentence(gates_after(log, at))} {validation_sentence(log, at)}")
    return sentences


def _pictures(item: Item, done: Mapping[str, RowResult], logs: Mapping[str, RunHistory], plan: Plan) -> list[Picture]:
    """Return the panels (a) to (h), as far as their runs are done."""
    drawn: list[Picture] = []
    if log := logs.get("ffn"):
        drawn += [picture_of(f"{item.name}-a", strengths(log)), picture_of(f"{item.name}-b", orders(log))]
    if "fheat-seg" in done:
        gates = allocation(load(scored_network(done["fheat-seg"], plan).parent / "final"))
        drawn.append(picture_of(f"{item.name}-c", responses(gates)))
    analyses = [inside(done[system], plan)[0] for system in ("fheat-seg", "light-unetr") if system in done]
    spectra = [(analysis, analysis.residual) for analysis in analyses if analysis.residual is not None]
    if spectra:
        drawn.append(replace(residual_picture(spectra), file=f"{item.name}-d.svg"))
    if log := logs.get("probed"):
        drawn += [picture_of(f"{item.name}-e", strengths(log)), picture_of(f"{item.name}-f", attenuation_figure(log))]
    for system, panel in (("noise", "g"), ("spike", "h")):
        if log := logs.get(system):
            marks = perturbation_marks(log.settings.research)
            drawn.append(picture_of(f"{item.name}-{panel}", strengths(log, marks)))
    return drawn


def present_port(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of SegFormer3D with and without gates, its survivors, and the figure of D over training."""
    scored = scores.present(item, results, plan)
    ported = next((result for result in results if result.plan.row.system == item.reference), None)
    pictures: list[Picture] = list(scored.pictures)
    ours: dict[str, MeanAndDeviation] = {}
    if ported is not None and ported.outcomes:
        log = read_history(scored_network(ported, plan).parent)
        left = [log.steps[-1][f"D.{site}"] for site in _strongest(log)]
        ours = {"survivors": moments([len(log.survivors)]), "D of the survivor": moments(left)}
        pictures.append(strengths_picture(_strengths(log), f"{item.name}-D", words=item.note))
    numbers = [
        Number("", name, value, ours.get(name, NOTHING), *_facts(ported)) for name, value in item.published.items()
    ]
    sheets = (*scored.sheets, published_sheet(item, numbers))
    return Presented(sheets, (*scored.numbers, *numbers), tuple(pictures), scored.notes)


def _strengths(log: RunHistory) -> dict[int, dict[str, float]]:
    """Return D of every gate by iteration."""
    return {int(step["iteration"]): {site: step[f"D.{site}"] for site in log.sites} for step in log.steps}

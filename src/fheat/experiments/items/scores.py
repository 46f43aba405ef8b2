"""Tables II to VI: scores of every row beside the published ones, tests between rows, and cost."""

from collections.abc import Mapping, Sequence

from fheat.experiments.items.cost import cost_numbers, cost_sheet
from fheat.experiments.items.presented import Presented, notes_on, scored_on
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item, Row
from fheat.experiments.row_result import IN_PER_CENT, Difference, RowResult, differences, title_of
from fheat.experiments.sheet import Number, Sheet, with_deviation
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import colours, plot
from fheat.metrics.significance import LEVEL
from fheat.metrics.statistics import TEST
from fheat.system.text import counted

TESTED = "p: paired test scan by scan, each scan with its mean over the seeds; " + TEST.replace(
    "second - first", "the reference minus the other row"
).replace("all p", "all tests of a setting")


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, the comparison with the reference row, cost, and a figure of the first column."""
    sheets = score_sheets(item, results)
    numbers = score_numbers(item, results)
    notes = notes_on(item, results, plan)
    tests = compared(item, results)
    if tests:
        sheets.append(test_sheet(tests))
        notes += [f"{TESTED}.", *few_scans(tests)]
    if item.costs:
        sheets.append(cost_sheet(item))
        numbers += cost_numbers(item)
        notes.append("Cost: one counter for all networks (fvcore's rules), one channel and two classes.")
    pictures = [score_picture(item, results)] if any(result.outcomes for result in results) else []
    return Presented(tuple(sheets), tuple(numbers), tuple(pictures), tuple(notes))


def columns_of(item: Item, row: Row) -> tuple[str, ...]:
    """Return the columns of a row: those that are published, or those of the item where none are."""
    return tuple(row.published) or item.columns


def score_sheets(item: Item, results: Sequence[RowResult]) -> list[Sheet]:
    """Return one table for all rows with the same columns: ours beside the published number, column by column."""
    by_columns: dict[tuple[str, ...], list[RowResult]] = {}
    for result in results:
        by_columns.setdefault(columns_of(item, result.plan.row), []).append(result)
    sheets = []
    for columns, some in by_columns.items():
        head = ["setting", "row"]
        for column in columns:
            head += [title_of(column), "paper"]
        head += ["seeds", "iterations", "scans", "state"]
        sheets.append(Sheet(item.title, tuple(head), tuple(_cells(result, columns) for result in some)))
    return sheets


def _cells(result: RowResult, columns: Sequence[str]) -> tuple[str, ...]:
    row = result.plan.row
    cells = [row.setting, row.title]
    for column in columns:
        ours = result.score(column)
        mean, sd = row.published.get(column, (None, None))
        cells += [with_deviation(ours.mean, ours.sd), with_deviation(mean, sd)]
    seeds = " ".join(map(str, result.outcomes)) or "-"
    return (*cells, seeds, result.iterations, result.scans, result.state)


def score_numbers(item: Item, results: Sequence[RowResult]) -> list[Number]:
    """Return the score of every row and column."""
    return [
        Number(
            result.name,
            column,
            result.plan.row.published.get(column),
            result.score(column),
            result.iterations,
            result.scans,
            result.state,
        )
        for result in results
        for column in columns_of(item, result.plan.row)
    ]


def compared(item: Item, results: Sequence[RowResult]) -> dict[str, list[Difference]]:
    """Return the tests of the reference row against every other one by setting, where there are any."""
    metrics = list(dict.fromkeys(column.partition(".")[0] for column in item.columns))
    settings = dict.fromkeys(result.plan.row.setting for result in results)
    tests = {
        setting: differences(
            [result for result in results if result.plan.row.setting == setting], item.reference or "", metrics
        )
        for setting in settings
    }
    return {setting: found for setting, found in tests.items() if found}


def few_scans(tests: Mapping[str, Sequence[Difference]]) -> list[str]:
    """Return a sentence for every setting with too few scans to be significant, whatever the networks do."""
    sentences = []
    for setting, found in tests.items():
        scans, tested = max(one.test.n for one in found), sum(one.test.p is not None for one in found)
        bound = min(1.0, 2.0 ** (1 - scans) * tested)  # where every scan differs in the same direction
        if bound > LEVEL:
            few = f"{counted(scans, 'scan')} and {counted(tested, 'test')}"
            sentences.append(f"{setting}: {few} cannot give a p Holm below {bound:.2g}.")
    return sentences


def test_sheet(tests: Mapping[str, Sequence[Difference]]) -> Sheet:
    """Return the tests as a table."""
    rows = []
    for setting, found in tests.items():
        for one in found:
            test = one.test
            factor = 100 if test.metric in IN_PER_CENT else 1
            difference = "-" if test.difference is None else f"{factor * test.difference:+.2f}"
            p, corrected = ("-" if value is None else f"{value:.3g}" for value in (test.p, one.p_holm))
            pair = f"{one.reference} - {one.row}"
            rows.append((setting, pair, test.label, title_of(test.metric), str(test.n), difference, p, corrected))
    head = ("setting", "difference between", "class", "metric", "scans", "mean difference", "p", "p Holm")
    return Sheet("Scan by scan", head, tuple(rows))


def score_picture(item: Item, results: Sequence[RowResult]) -> Picture:
    """Return the figure of the first column: ours with its deviation over seeds, and the published number."""
    column = item.columns[0]
    shown = [result for result in results if result.outcomes]
    words = [f"{result.name} {with_deviation(*_both(result, column))}" for result in shown]
    caption = (
        f"{item.title}: {title_of(column)}, ours (mean and deviation over seeds) and published. {'; '.join(words)}. "
        f"{scored_on(shown)}"
    )
    names = [f"{result.plan.row.setting}, {result.plan.row.title}" for result in shown]
    with plot(item.name, caption, size=(6.4, 1.1 + 0.22 * len(shown))) as drawing:
        axes, (ours, paper) = drawing.axes, colours(2)
        for place, result in enumerate(reversed(shown)):
            mean, sd = _both(result, column)
            published = result.plan.row.published.get(column)
            if mean is not None:
                axes.errorbar([mean], [place], xerr=sd or 0, fmt="o", color=ours, elinewidth=1)
            if published is not None:
                axes.errorbar([published.mean], [place], xerr=published.sd or 0, fmt="D", mfc="none", color=paper)
        axes.plot([], [], "o", color=ours, label="ours")
        axes.plot([], [], "D", color=paper, mfc="none", label="paper")
        axes.set_yticks(range(len(shown)), names[::-1])
        axes.set(xlabel=title_of(column))
        drawing.legend()
    return svg_picture(item.name, drawing.svg, caption)


def _both(result: RowResult, column: str) -> tuple[float | None, float | None]:
    score = result.score(column)
    return score.mean, score.sd

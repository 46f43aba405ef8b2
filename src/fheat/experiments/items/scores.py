"""Tables II to VI: scores of every row beside the published ones, tests between rows, and cost."""

from collections.abc import Sequence

from fheat.experiments.items.cost import cost_numbers, cost_sheet
from fheat.experiments.items.presented import Presented, notes_on
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item, Row
from fheat.experiments.results import IN_PER_CENT, RowResult, differences, title_of
from fheat.experiments.tables import Number, Sheet, with_deviation
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import colours, plot
from fheat.metrics.statistics import TEST

TESTED = "p: paired test scan by scan, each scan with its mean over the seeds; " + TEST.replace(
    "second - first", "the reference minus the other row"
).replace("all p", "all tests of a setting")


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the scores of all rows, the comparison with the reference row, cost, and a figure of the first column."""
    sheets = score_sheets(item, results)
    numbers = score_numbers(item, results)
    notes = notes_on(item, results, plan)
    tests = test_sheet(item, results)
    if tests.rows:
        sheets.append(tests)
        notes.append(f"{TESTED}.")
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


def test_sheet(item: Item, results: Sequence[RowResult]) -> Sheet:
    """Return the tests of the reference row against every other one, setting by setting."""
    metrics = list(dict.fromkeys(column.partition(".")[0] for column in item.columns))
    rows = []
    for setting in dict.fromkeys(result.plan.row.setting for result in results):
        some = [result for result in results if result.plan.row.setting == setting]
        for one in differences(some, item.reference or "", metrics):
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
        f"{item.title}: {title_of(column)}, ours (mean and deviation over seeds) and published. {'; '.join(words)}."
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

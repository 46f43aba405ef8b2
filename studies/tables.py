"""Compute with the numbers that the paper prints: `python studies/tables.py`, which needs no network and no data.

The printed numbers are those of the records that `fheat reproduce` shows. The result says which statements of the paper
about its own tables follow from them: margins beside seed deviations, ranks, means, gains, pairs of Dice and Jaccard
that cannot belong to the same scans, and costs beside those that `benchmarks/results/sizes.json` has counted.
"""

import json
import statistics
from typing import Any

from record import read_result, write_result

from fheat.experiments.records import Item, Row, datasets, item

Numbers = dict[str, Any]
HIGHER_IS_BETTER = ("dice", "jaccard")
LA_VOXELS, CUBE_VOXELS = 112 * 112 * 80, 96**3
ROUNDING = 0.005
"""Half a unit of the last printed digit of a score in per cent."""


NAMES = {
    "nnunet": "nnU-Net",
    "ffn": "GELU mixer",
    "kan-ratio-2": "KAN ratio 2",
    "kan-rate-doubled": "KAN rate 0.1",
    "all-closed": "all D frozen at 0",
    "dec1-only": "D learnable at Block_Final only",
}
"""Names of systems in the result, where they are not their titles in the records."""
REGIONS = {"whole_tumour": "WT", "enhancing_tumour": "ET", "tumour_core": "TC"}


def read_published() -> Numbers:
    """Return the printed numbers by table: in `rows` those of a system, setting by setting, costs behind them."""
    tables = {name: _printed(item(name)) for name in ("table2", "table3", "table4", "table5", "table6")}
    tables["table4"]["foundation_models"] = [row for row in tables["table4"]["rows"] if "SAM" in row]
    tables["table4"]["ours"] = ["FHEAT-Seg", "FHEAT-Seg-L"]
    rows = tables["table6"]["rows"]
    rows["full model"] = rows.pop("FHEAT-Seg")
    return tables


def _printed(table: Item) -> Numbers:
    rows: dict[str, list[float]] = {}
    deviations: dict[str, list[float]] = {}
    groups: dict[str, list[str]] = {}
    for row in (row for row in table.rows if row.published):
        name = NAMES.get(row.system, row.title)
        rows.setdefault(name, []).extend(value.mean for value in row.published.values())
        sds = [value.sd for value in row.published.values() if value.sd is not None]
        if sds:
            deviations.setdefault(name, []).extend(sds)
        classes = [column.partition(".")[2] for column in row.published if "." in column]
        groups.setdefault(_setting(row), [REGIONS.get(one, one) for one in classes])
    opened = {}
    for cost in table.costs:
        name = NAMES.get(cost.system, cost.title)
        rows[name] += [cost.published["macs"]] + ([cost.published["parameters"]] if table.name == "table4" else [])
        if "macs_open" in cost.published:
            opened[name] = cost.published["macs_open"]
    split = {
        "sd": deviations,
        "with_transforms": opened,
        "groups": {name.split(",")[0]: of for name, of in groups.items()},
    }
    return {"settings": list(groups), "columns": list(table.columns), "rows": rows, **split}


def _setting(row: Row) -> str:
    return f"{datasets()[row.dataset].title}, {row.labels or 'all'} labels"


def scores(table: Numbers, row: str, kind: str = "rows") -> dict[str, dict[str, float]]:
    """Return the scores of a row by setting and metric."""
    columns, numbers = table["columns"], table[kind][row]
    return {
        setting: dict(zip(columns, numbers[len(columns) * place :], strict=False))
        for place, setting in enumerate(table["settings"])
    }


def gain(metric: str, ours: float, other: float) -> float:
    """Return by how much `ours` is better, in the printed two digits."""
    return round(ours - other if metric in HIGHER_IS_BETTER else other - ours, 2)


def margins(published: Numbers) -> Numbers:
    """Return the margin of FHEAT-Seg over Light-UNETR in every cell of Tables II and III, beside its seed SD."""
    cells: dict[str, dict[str, Numbers]] = {}
    for name in ("table2", "table3"):
        table = published[name]
        ours, other, sd = scores(table, "FHEAT-Seg"), scores(table, "Light-UNETR"), scores(table, "FHEAT-Seg", "sd")
        for setting, row in ours.items():
            cells[setting] = {
                metric: {"margin": gain(metric, value, other[setting][metric]), "sd": sd[setting][metric]}
                for metric, value in row.items()
            }
    pairs = {f"{setting} ({metric})": cell for setting, row in cells.items() for metric, cell in row.items()}
    not_below = [name for name, cell in pairs.items() if not cell["sd"] < cell["margin"]]
    return {"cells": cells, "count": len(pairs), "sd_below": len(pairs) - len(not_below), "sd_not_below": not_below}


def ranks(published: Numbers) -> Numbers:
    """Return in how many of the five settings FHEAT-Seg is first, by metric, and who is ahead where it is not."""
    first = dict.fromkeys(published["table2"]["columns"], 0)
    ahead: dict[str, list[str]] = {}
    for name in ("table2", "table3"):
        table = published[name]
        rows = {row: scores(table, row) for row in table["rows"]}
        for setting, metric in ((setting, metric) for setting in table["settings"] for metric in first):
            ours = rows["FHEAT-Seg"][setting][metric]
            better = [row for row, values in rows.items() if gain(metric, values[setting][metric], ours) > 0]
            if better:
                ahead[f"{setting}, {metric}"] = better
            first[metric] += not better
    return {"settings": 5, "first": first, "ahead": ahead}


def full_supervision(published: Numbers) -> Numbers:
    """Return how many columns of Table IV the two FHEAT networks lead, its rows, and the Dice gains."""
    table = published["table4"]
    ours, rows = table["ours"], table["rows"]
    names = [f"{setting}, {metric}" for setting in table["settings"] for metric in table["columns"]]
    leaders = {}
    for place, name in enumerate([*names, "multiply-adds", "parameters"]):
        best = max if name.split(", ")[-1] in HIGHER_IS_BETTER else min
        leaders[name] = best(rows, key=lambda row: rows[row][place])
    gains = {
        own: {
            setting: gain("dice", values["dice"], scores(table, other)[setting]["dice"])
            for setting, values in scores(table, own).items()
        }
        for own, other in (("FHEAT-Seg", "Light-UNETR"), ("FHEAT-Seg-L", "Light-UNETR-L"))
    }
    return {
        "columns": len(leaders),
        "led": sum(leader in ours for leader in leaders.values()),
        "led_by_others": {name: leader for name, leader in leaders.items() if leader not in ours},
        "foundation_models": len(table["foundation_models"]),
        "networks": len(rows) - len(ours) - len(table["foundation_models"]),
        "gains": gains,
    }


def jaccard_bounds(published: Numbers) -> Numbers:
    """Return the printed pairs of Dice and Jaccard that no set of scans can have.

    J = d / (2 - d) is convex in d, so the mean Jaccard over scans is at least D / (2 - D) for a mean Dice D; and as
    J <= d it is at most D. Rounding is allowed for.
    """
    pairs = {}
    for name in ("table2", "table3", "table4"):
        for row in published[name]["rows"]:
            for setting, values in scores(published[name], row).items():
                pairs[f"{row}, {setting}"] = values["dice"], values["jaccard"]
    for row, (dice, jaccard, *_) in published["table6"]["rows"].items():
        pairs[f"{row}, Table VI"] = dice, jaccard
    impossible = {}
    for name, (dice, jaccard) in pairs.items():
        lowest = (dice - ROUNDING) / 100
        least = 100 * lowest / (2 - lowest)
        if not least <= jaccard + ROUNDING or jaccard - ROUNDING > dice + ROUNDING:
            impossible[name] = {"dice": dice, "jaccard": jaccard, "least": round(least, 2)}
    return {"pairs": len(pairs), "impossible": len(impossible), "which": impossible}


def more_tasks(published: Numbers) -> Numbers:
    """Return the means of Table V computed from its cells, and the gains by printed and by computed means."""
    printed, computed, cells = {}, {}, {}
    for row, numbers in published["table5"]["rows"].items():
        place = 0
        for group, regions in published["table5"]["groups"].items():
            values = numbers[place : place + len(regions)]
            cells[row, group] = dict(zip(regions, values, strict=True))
            printed[row, group], computed[row, group] = numbers[place + len(regions)], statistics.mean(values)
            place += len(regions) + 1
    wrong = {
        f"{row}, {group}": {"printed": mean, "computed": round(computed[row, group], 3)}
        for (row, group), mean in printed.items()
        if abs(mean - computed[row, group]) > ROUNDING + 1e-9
    }
    pairs = (("FHEAT-Seg", "Light-UNETR"), ("FHEAT-Seg-L", "Light-UNETR-L"))
    groups = published["table5"]["groups"]
    gains = {
        own: {
            group: {
                "printed": round(printed[own, group] - printed[other, group], 2),
                "computed": round(computed[own, group] - computed[other, group], 2),
            }
            for group in groups
        }
        for own, other in pairs
    }
    tumour = {
        own: {
            region: round(value - cells[other, "MSD Task01"][region], 2)
            for region, value in cells[own, "MSD Task01"].items()
        }
        for own, other in pairs
    }
    return {"means": len(printed), "means_wrong": len(wrong), "which": wrong, "gains": gains, "tumour_regions": tumour}


def ablations(published: Numbers) -> Numbers:
    """Return the Dice of every row of Table VI minus that of the full model, beside the seed SD of that model."""
    rows = published["table6"]["rows"]
    apart = {row: round(values[0] - rows["full model"][0], 2) for row, values in rows.items() if row != "full model"}
    return {"dice_minus_full_model": apart, "seed_sd": published["table2"]["sd"]["FHEAT-Seg"][0]}


def costs(published: Numbers) -> Numbers:
    """Return the savings as printed and as counted by one counter, and the costs at 96x96x96 by scaling."""
    table4, table5 = published["table4"], published["table5"]
    printed = {row: numbers[-2] for row, numbers in table4["rows"].items()}
    sizes = read_result("sizes").results["networks"]
    ours, other = sizes["fheat_seg"]["112x112x80"], sizes["light_unetr"]["112x112x80"]
    large, other_large = sizes["fheat_seg_l"]["112x112x80"], sizes["light_unetr_l"]["112x112x80"]
    survivor = read_result("bypass-cpu").results["macs"]["fheat_seg, dec1 open, rest retired"]
    scale = CUBE_VOXELS / LA_VOXELS
    return {
        "printed": {
            "saving_beside_light_unetr": 1 - printed["FHEAT-Seg"] / printed["Light-UNETR"],
            "saving_with_transforms": 1 - table4["with_transforms"]["FHEAT-Seg"] / printed["Light-UNETR"],
            "fewer_parameters": 1 - table4["rows"]["FHEAT-Seg"][-1] / table4["rows"]["Light-UNETR"][-1],
        },
        "counted": {
            "saving_all_closed": 1 - ours["closed"] / ours["open"],
            "saving_with_survivor": 1 - survivor / ours["open"],
            "saving_beside_light_unetr": 1 - ours["closed"] / other["open"],
            "saving_beside_light_unetr_with_survivor": 1 - survivor / other["open"],
            "saving_beside_light_unetr_with_transforms": 1 - ours["open"] / other["open"],
            "fewer_parameters": 1 - ours["parameters"] / other["parameters"],
            "large_fewer_parameters": 1 - large["parameters"] / other_large["parameters"],
            "large_saving": 1 - large["closed"] / other_large["open"],
            "large_saving_with_transforms": 1 - large["open"] / other_large["open"],
            "printed_over_counted_light_unetr": printed["Light-UNETR"] / (other["open"] / 1e9),
            "printed_over_counted_light_unetr_l": printed["Light-UNETR-L"] / (other_large["open"] / 1e9),
        },
        "scaled_to_96": {
            row: {
                "closed": round(printed[row] * scale, 2),
                "open": round(table4["with_transforms"][row] * scale, 2),
                "printed_closed": table5["rows"][row][-1],
                "printed_open": table5["with_transforms"][row],
            }
            for row in table4["ours"]
        },
    }


def compute() -> Numbers:
    """Return everything that follows from the printed numbers."""
    published = read_published()
    return {
        "margins": margins(published),
        "ranks": ranks(published),
        "full_supervision": full_supervision(published),
        "jaccard_bounds": jaccard_bounds(published),
        "more_tasks": more_tasks(published),
        "ablations": ablations(published),
        "costs": costs(published),
    }


def main() -> None:
    results = compute()
    print(json.dumps(results, indent=1))
    write_result(
        "paper-tables",
        title="What follows from the numbers that the paper prints: margins, ranks, means, gains, bounds, costs",
        command="python studies/tables.py",
        seed=None,
        settings={"printed numbers": "src/fheat/experiments/paper", "counted costs": "sizes.json, bypass-cpu.json"},
        results=results,
    )


if __name__ == "__main__":
    main()

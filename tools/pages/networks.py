"""Sizes and times of the networks (docs/evidence/networks.md)."""

from pages.common import giga, stored, table

OURS = ("fheat_seg", "fheat_seg_l", "fheat_segformer3d")
LA, CUBE = "112x112x80", "96x96x96"
SURVIVOR = "fheat_seg, dec1 open, rest retired"


def sizes() -> str:
    """Return the table of parameters and multiply-adds."""
    rows = []
    for name, counted in stored("sizes")["networks"].items():
        cells = [f"`{name}`" + ("" if name in OURS else " (peer)"), f"{counted[LA]['parameters']:,}"]
        for patch in (LA, CUBE):
            opened, closed = counted[patch]["open"], counted[patch]["closed"]
            cells += [f"{giga(opened)} G", f"{giga(closed)} G" if opened != closed else ""]
        rows.append(cells)
    head = ["network", "parameters", f"{LA}, gates open", "all closed", f"{CUBE}, open", "closed"]
    return table(head, rows)


def stability(kind: str) -> str:
    """Return how `networks` or `methods` trained for some hundred iterations in bfloat16."""
    rows = []
    for name, run in stored("stability-cuda")[kind].items():
        losses = f"{run['loss_before']:.2f} to {run['loss_after']:.2f}"
        finite = "yes" if run["finite"] else "no"
        rows.append([f"`{name}`", finite, str(run["skipped"]), losses, f"{100 * run['in_bfloat16']:.0f} %"])
    return table(["", "all losses and weights finite", "skipped updates", "loss", "layers in bfloat16"], rows)


def published_costs() -> str:
    """Return the table of our counts beside the published ones, at both sizes, with the reasons where they differ."""
    by_size = stored("sizes")["published"]
    at_cube = {row["name"]: row for row in by_size[CUBE]}
    rows = []
    for row in by_size[LA]:
        if "ours" not in row or not row["published"]:
            continue
        cube = at_cube[row["name"]]
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        cells = [f"`{row['network']}`" + (f" ({options})" if options else "")]
        for counted, quantity in ((row, "parameters"), (row, "macs"), (cube, "macs")):
            cells += [_count(counted["ours"][quantity]), str(counted["published"].get(quantity, ""))]
        reasons = [part for reason in (row["reason"], cube["reason"]) for part in reason.split("; ") if part]
        rows.append([*cells, "; ".join(dict.fromkeys(reasons))])  # what they have in common once
    head = ["network", "M", "paper", f"G, {LA}", "paper", f"G, {CUBE}", "paper", "why they differ"]
    return table(head, rows)


def _count(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def fewer_parameters() -> str:
    """Return how many parameters less a small network has at the smaller patch."""
    counted = stored("sizes")["networks"]["fheat_seg"]
    return f"{counted[LA]['parameters'] - counted[CUBE]['parameters']:,}"


def honest_saving() -> str:
    """Return how many per cent fewer multiply-adds FHEAT-Seg has than Light-UNETR with all its gates closed."""
    counted = stored("sizes")["networks"]
    return f"{100 * (1 - counted['fheat_seg'][LA]['closed'] / counted['light_unetr'][LA]['closed']):.0f}"


def retiring_times() -> str:
    """Return the table of times over that of the retired network in plain PyTorch."""
    cpu, cuda = (stored(f"bypass-{device}")["ratio_to_retired"] for device in ("cpu", "cuda"))
    rows = [
        ("all gates open", "fheat_seg, all gates open"),
        ("all closed, not retired", "fheat_seg, all closed, not retired"),
        ("**all retired**", "fheat_seg, all retired"),
        ("dec1 open, rest retired", SURVIVOR),
        ("GELU mixers, all retired", "fheat_seg, gelu mixer, all retired"),
        ("Light-UNETR", "light_unetr"),
    ]
    cells = [_row(words, f"{cpu[name]:.2f}", f"{cuda[name]:.2f}") for words, name in rows]
    return table(["", "two CPU threads", "NVIDIA H200, captured graph"], cells)


def window_times() -> str:
    """Return the table of times of FHEAT-Seg with fused kernels."""
    single, eight = (stored(f"bench-window-{name}-cuda")["window"] for name in ("fp32", "bf16"))
    rows = [
        ("all gates open", "fheat_seg"),
        ("**all retired**", "fheat_seg/retired"),
        ("dec1 open, rest retired", "fheat_seg/survivor"),
    ]
    cells = []
    for words, name in rows:
        times = [f"{run['milliseconds'][name]:.2f} ms" for run in (single, eight)]
        ratios = [f"{run['ratio'][name]:.2f}" for run in (single, eight)]
        cells.append(_row(words, times[0], ratios[0], times[1], ratios[1]))
    return table(["", "one window, float32", "ratio", "eight windows, bfloat16", "ratio"], cells)


def survivors_transform(precision: str) -> str:
    """Return how many per cent of a window the transform of the one open gate adds."""
    ratio = stored(f"bench-window-{precision}-cuda")["window"]["ratio"]["fheat_seg/survivor"]
    return f"{100 * (ratio - 1):.0f}"


def transform_in_kernels() -> str:
    """Return the time of the fused transform over that of the library's products, least and largest."""
    ratios = [
        row[kind] / row["library"]
        for row in stored("fused-transform-cuda")["milliseconds"].values()
        for kind in ("kernels", "kernels, spectrum kept")
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _row(words: str, *cells: str) -> list[str]:
    """Return a row whose cells are bold where its first one is."""
    return [words, *(f"**{cell}**" if words.startswith("**") else cell for cell in cells)]

"""Measure what la-4 does inside, beside networks with fresh weights: `python studies/analysis.py --data LA`.

The scans are the validation scans of LA, with windows half a patch apart. The result holds the residual spectrum of
the bottom blocks and the attention inside the target, scan by scan, as `fheat allocation la-4 --residual --attention
--data LA --json` prints them. It holds the same for the FHEAT blocks inside the light blocks, for nearest instead of
trilinear attention, and for the two networks with fresh weights, and the share inside the target of other readings of
an attention map.
"""

import json
from statistics import mean

import torch
from record import arguments, write_result

from fheat import Card, Predictor, __version__, create_model
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image, read_label
from fheat.studies.inside.attention import attention_map, concentration, target_mask
from fheat.studies.inside.measure import AnalysisOptions, analyse, half_stride
from fheat.studies.inside.record import Analysis
from fheat.training.runs import Saved, open_saved

INSIDE = tuple(f"enc4.blocks.{block}.{half}" for block in (0, 1) for half in ("first", "second"))
READINGS = {
    "squared": lambda a: a.square(),
    "from least to most": lambda a: a - a.min(),
    "from least to most, squared": lambda a: (a - a.min()).square(),
    "above its median": lambda a: (a - a.median()).clamp(min=0),
}


def untrained(name: str, card: Card) -> Saved:
    torch.manual_seed(0)
    model = create_model(name).eval()
    model.card = card
    return Saved(f"{name}, fresh weights", model, None, None)


def readings(saved: Saved, cases: tuple, device: str) -> dict[str, float]:
    """Mean share inside the target if the attention map is changed first."""
    predictor = Predictor(saved.model, windows=half_stride(saved), device=device, runtime="torch", precision="float32")
    shares: dict[str, list[float]] = {name: [] for name in READINGS}
    for case in cases:
        image = read_image(case)
        attention = attention_map(predictor, predictor.scan(image)).double()
        target = target_mask(predictor, read_label(case, image))
        for name, change in READINGS.items():
            shares[name].append(concentration(change(attention), target).share)
    return {name: mean(found) for name, found in shares.items()}


def main() -> None:
    options = arguments(__doc__, "analysis-la-4", rounds=1, data="LA in the nnU-Net layout")
    dataset = open_dataset(options.data)
    cases, saved = dataset.split("validation"), open_saved("la-4")

    def summary(one: Saved, what: AnalysisOptions) -> dict:
        found = analyse(one, cases, what, device=options.device)
        wrapped = Analysis(fheat=__version__, dataset=dataset.name, split="validation", models=(found,))
        return wrapped.summary()[0] | {"by_block": found.residual.by_block if found.residual else None}

    found = analyse(saved, cases, AnalysisOptions(), device=options.device)
    analysis = Analysis(fheat=__version__, dataset=dataset.name, split="validation", models=(found,))
    results = {
        "analysis": json.loads(analysis.text()),
        "fheat_blocks": summary(saved, AnalysisOptions(attention=False, blocks=INSIDE)),
        "nearest": summary(saved, AnalysisOptions(residual=False, upsampling="nearest")),
        "fresh": [summary(untrained(name, saved.card), AnalysisOptions()) for name in ("fheat_seg", "light_unetr")],
        "other_readings_of_attention": readings(saved, cases, options.device),
    }
    print(json.dumps(analysis.summary()))
    write_result(
        options.name,
        title="Residual spectrum and attention of la-4 on LA, beside two networks with fresh weights",
        command=f"python studies/analysis.py --data LA --device {options.device}",
        seed=0,
        device=options.device,
        settings={"data": "the 8 validation scans of LA, which chose the iteration of la-4"},
        results=results,
        out=options.out,
    )


if __name__ == "__main__":
    main()

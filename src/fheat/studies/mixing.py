"""Effect of the operators at the sites of a trained network on real scans: how far each is from the identity."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fheat.data.case import Case
from fheat.data.preprocessing import PreparedScan
from fheat.data.read import read_image
from fheat.gates.similarity import Compared, Similarity, measured_similarity
from fheat.inference.predictor import Predictor
from fheat.inference.sliding import SlidingWindow
from fheat.system.progress import Progress, silent


def similarity_on_scans(
    model: nn.Module | str | Path,
    cases: Sequence[Case],
    *,
    device: str | None = None,
    compared: Compared = "sites",
    progress: Progress = silent,
) -> dict[str, Similarity]:
    """Return how like its input the output of every site, or of its blocks, is on all windows of some scans, by site.

    The network runs by plain PyTorch, in float32 and in evaluation mode, with the windows and the preprocessing of its
    card. Gates that training closed are retired, which changes no output; their identity is measured all the same.

    Args:
        model: a network with a card, or the folder of one.
        cases: the scans; their labels are not read.
        device: device to run on; a GPU where there is one if None.
        compared: `sites`, `blocks` for consecutive layers, or `branches` of these; `fheat.gates.similarity` explains.
        progress: called with the number of scans done and their total.
    """
    predictor = Predictor(model, device=device, runtime="torch", precision="float32")
    with measured_similarity(predictor.network, compared) as record:
        for done, case in enumerate(cases, start=1):
            _run(predictor, predictor.scan(read_image(case)))
            progress(done, len(cases))
    return record.results()


@torch.no_grad()
def _run(predictor: Predictor, scan: PreparedScan) -> None:
    """Pass every window of a scan through the network itself, not through a captured graph, which calls no hook."""
    sliding = SlidingWindow(predictor.network, predictor.windows, activation="none", batch=predictor.batch)
    axis = sliding.axis(scan.shape)

    def planes(start: int, stop: int) -> Tensor:
        return scan.planes(axis, start, stop, predictor.device)

    for _ in sliding.stream(planes, scan.shape, scan.channels, scan.source_shape):
        pass

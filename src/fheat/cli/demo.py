"""`fheat demo`: the whole story in a few minutes on a CPU, on synthetic scans or on those of a folder."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fheat.cli.gate_screen import gate_screen
from fheat.cli.main import UsageError, command
from fheat.cli.options import parse
from fheat.experiments.demo import DemoPlan, run_demo


@dataclass(frozen=True)
class Demo:
    """Segment a synthetic scan of a heart chamber with the packaged model phantom. Then train FHEAT-Seg from a few
    labels and the other scans, watch the gates close, train it again from the same labels alone, compare both on scans
    neither has seen, retire the closed gates, check that nothing changed, segment a new scan of another size, spacing
    and orientation, and write a report.

    With --data the same is done with scans of your own, in any layout that fheat train reads. Held out are the test
    scans that have a label, else the validation scans, else every fifth labelled scan. There is no packaged model for
    them, and no new scan: the retired network segments a held-out one.

    Example: fheat demo --out demo

    Example: fheat demo --data Task04_Hippocampus --out demo-hippocampus
    """

    out: Path = Path("demo")
    """Folder for everything; that of an earlier demo is written anew."""
    data: Path | None = None
    """Dataset folder, see fheat data check; synthetic scans if not given."""
    labelled: int | None = None
    """Number of scans whose labels are used; 1, with --data 40."""
    iterations: int | None = None
    """Number of iterations of each of the two runs; 300, with --data 700."""
    seed: int = 1
    """Seed of synthetic scans, weights and steps."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print the result as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Demo, "demo", arguments)
    for name in ("iterations", "labelled"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise UsageError(f"{name}={value} is too few: give 1 or more")
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"seed={options.seed} is out of range: give a whole number from 0 to 2^63 - 1")
    say: Callable[[str], None] = (lambda words: None) if options.json else (lambda words: print(words, flush=True))
    plan = DemoPlan(options.out, options.data, options.labelled, options.iterations, options.seed)
    result = run_demo(plan, say, gate_screen)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    say(f"wrote {options.out / 'report.html'} and more, in {result['seconds']:.0f} s; next:")
    say(f"  {command('allocation', options.out / 'model')}")
    if options.data is None:
        say(f"  {command('predict', *(options.out / name for name in ('model', 'scan.nii.gz', 'masks')))}")
    else:
        say(f"  {command('predict', options.out / 'model', 'SCANS', 'masks')}")

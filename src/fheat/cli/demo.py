"""`fheat demo`: the whole story on synthetic scans, in a few minutes, on the CPU, without data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fheat.cli.gate_screen import gate_screen
from fheat.cli.main import UsageError, command
from fheat.cli.options import parse
from fheat.experiments.demo import ITERATIONS, DemoPlan, run_demo


@dataclass(frozen=True)
class Demo:
    """Make synthetic scans of a heart chamber, train FHEAT-Seg from a few labels and the other scans, watch the gates
    close, train it again from the same labels alone, compare both on scans neither has seen, retire the closed gates,
    check that nothing changed, segment a new scan of another size, spacing and orientation, and write a report.

    Example: fheat demo --out demo
    """

    out: Path = Path("demo")
    """Folder for everything; that of an earlier demo is written anew."""
    iterations: int = ITERATIONS
    """Number of iterations of each of the two runs."""
    seed: int = 1
    """Seed of scans, weights and steps."""
    json: bool = False
    """Print the result as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Demo, "demo", arguments)
    if options.iterations < 1:
        raise UsageError(f"iterations={options.iterations} is too few: give 1 or more")
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"seed={options.seed} is out of range: give a whole number from 0 to 2^63 - 1")
    say: Callable[[str], None] = (lambda words: None) if options.json else (lambda words: print(words, flush=True))
    result = run_demo(DemoPlan(options.out, options.iterations, options.seed), say, gate_screen)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    say(f"wrote {options.out / 'report.html'} and more, in {result['seconds']:.0f} s; next:")
    say(f"  {command('allocation', options.out / 'model')}")
    say(f"  {command('predict', *(options.out / name for name in ('model', 'scan.nii.gz', 'masks')))}")

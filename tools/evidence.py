"""Check every verdict about the paper against stored results and write its page: `python tools/evidence.py`.

The claims and their checks are in `studies/claims`. A check that is no longer true of a stored result is printed, and
the exit code is 1: then either the result or the verdict is wrong. `--check` writes nothing and also exits with 1 if
the page is out of date.
"""

import argparse
import sys
from collections import Counter

from pages.claims import VERDICTS, contradictions, read_claims
from render import rendered
from results import ROOT

PAGE = ROOT / "docs" / "evidence" / "evidence.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    options = parser.parse_args()
    claims = read_claims()
    counts = Counter(claim.verdict for claim in claims)
    print(f"{len(claims)} claims: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    wrong = contradictions(claims)
    for line in wrong:
        print(line, file=sys.stderr)
    text = rendered(PAGE)
    stale = text != PAGE.read_text()
    if stale and not options.check:
        PAGE.write_text(text)
    if stale:
        print(f"{PAGE.relative_to(ROOT)}: {'is out of date; run make docs' if options.check else 'written'}")
    return 1 if wrong or (options.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Add failures to the corpus: `python -m tests.attack.make_corpus FAILURES`, a file that `--failures` wrote.

Of every kind and class the shortest recipes with different details are kept, twelve at most.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
KEPT = 12


def main(path: str) -> None:
    """Merge the failures of a file into the corpus, one file per kind."""
    groups: dict[tuple[str, str], dict[str, dict]] = defaultdict(dict)
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for failure in sorted(lines, key=lambda failure: len(json.dumps(failure))):
        about = re.sub(r"/\S*|[\d.e+-]+|'[^']*'", "#", failure["details"])[:60]
        kept = groups[failure["kind"], failure["class"]]
        if len(kept) < KEPT:
            kept.setdefault(about, failure)
    for kind in sorted({kind for kind, _ in groups}):
        file = CORPUS / f"{kind}.json"
        recipes = json.loads(file.read_text()) if file.exists() else []
        for (name, outcome), kept in groups.items():
            for failure in kept.values() if name == kind else ():
                recipe = {key: value for key, value in failure.items() if key not in ("index", "details", "class")}
                recipe["once"] = outcome
                if recipe not in recipes:
                    recipes.append(recipe)
        file.write_text("[\n" + ",\n".join(f" {json.dumps(recipe)}" for recipe in recipes) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""Write benchmarks/results/README.md, the list of all stored results: `python tools/index.py`, or `make docs`.

`--check` writes nothing and exits with 1 if the list is out of date.
"""

import argparse
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

from pages.common import table
from render import pages, used_results
from results import HEAD, RESULTS, ROOT, Result, read_result, result_names

INDEX = RESULTS / "README.md"
INTRODUCTION = f"""# Stored results

`make docs` writes this list from the files themselves. Every file has the same head ({", ".join(HEAD)}),
then `settings`, which say how the measurement was made, and `results`. A fact that nobody recorded is null in the file
and a dash here.
[tools/results.py](../../tools/results.py) has the schema. The scripts in `benchmarks/` and `studies/` write such files,
and `python tools/store_result.py NAME FILE` stores what a command of fheat printed with `--json`.
"""


def users() -> dict[str, list[Path]]:
    """Return, for every stored result, the pages that show it, or the code that names it where no page does."""
    shown = defaultdict(list)
    for page in pages():
        for name in used_results(page):
            shown[name].append(page)
    code = defaultdict(list)
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        for name in set(re.findall(r"([\w-]+)\.json", path.read_text())):
            code[name].append(path)
    return {name: shown[name] or code[name] for name in result_names()}


def index() -> str:
    """Return the text of the list."""
    rows = [_row(read_result(name), used) for name, used in users().items()]
    head = ["result", "what it says", "command", "machine", "date", "used by"]
    notes = [f"- `{name}`: {result.note}" for name in result_names() if (result := read_result(name)).note]
    return f"{INTRODUCTION}\n{table(head, rows)}\n\n## Notes\n\n" + "\n".join(notes) + "\n"


def _row(result: Result, used: list[Path]) -> list[str]:
    machine = result.machine
    threads = f", {machine.threads} threads" if machine.device == "cpu" and machine.threads else ""
    return [
        f"[{result.name}]({result.name}.json)",
        result.title,
        f"`{result.command}`" if result.command else "-",
        f"{machine.name or machine.device or '-'}{threads}".replace(" 1 threads", " 1 thread"),
        result.date or "-",
        ", ".join(f"[{path.name}]({os.path.relpath(path, RESULTS)})" for path in used) or "-",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the list is out of date")
    options = parser.parse_args()
    text = index()
    stale = not INDEX.is_file() or INDEX.read_text() != text
    if stale and not options.check:
        INDEX.write_text(text)
    if stale:
        print(f"{INDEX.relative_to(ROOT)}: {'is out of date; run make docs' if options.check else 'written'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

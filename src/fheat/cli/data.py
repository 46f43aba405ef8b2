"""`fheat data VERB`: import, check and make datasets. Only the file of the verb is imported, which keeps help fast."""

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from fheat.cli.main import UsageError

VERBS: Final = {
    "import": "find scans and labels in a folder by their names, and write a datalist that training reads",
    "check": "read every case of a dataset and list what is wrong with it",
    "prepare": "bring a public dataset into one layout, with its official split",
    "phantom": "write a small dataset of synthetic scans",
    "contrast": "measure the image gradient along the boundaries of regions, and compare two",
}


def run(arguments: Sequence[str]) -> None:
    """Run the verb that the first argument names."""
    words = list(arguments)
    known = ", ".join(VERBS)
    if not words:
        raise UsageError(f"data needs a verb: use one of {known}")
    if words[0] in ("-h", "--help"):
        print(_help(), flush=True)
        raise SystemExit(0)
    if words[0] not in VERBS:
        raise UsageError(f"no verb {words[0]!r}: use one of {known}")
    import_module(f"fheat.cli.data_{words[0]}").run(words[1:])


def _help() -> str:
    verbs = "\n".join(f"  {name:<12}{text}" for name, text in VERBS.items())
    return (
        f"usage: fheat data VERB [OPTIONS]\n\nImport, check, prepare and make datasets.\n\nverbs:\n{verbs}\n\n"
        "  fheat data VERB --help shows the options of a verb; each takes --json\n\n"
        "Example: fheat data check FOLDER --json"
    )

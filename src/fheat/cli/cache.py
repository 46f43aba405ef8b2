"""`fheat cache`: what compilers made and fheat keeps between its starts; show it, or remove it."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fheat.cli.options import parse
from fheat.inference.ahead import NOTE
from fheat.system.cache import VARIABLE, cache_folder, cached, clear_cache, clear_kernels, kept_kernels
from fheat.system.files import check_folder
from fheat.system.text import counted, printable


@dataclass(frozen=True)
class CacheOptions:
    """Show the compiled networks and the GPU kernels that are kept on disk, so that the next start need not compile
    them; or remove them, which only costs the time to compile them again.

    Each network is checked against its hash before it is used; kernels are kept by Triton, which does not. Notes of a
    few bytes say what each model used last, so that the next start can open it early; only --json lists them. The
    environment variable FHEAT_CACHE names another folder, and TRITON_CACHE_DIR one for kernels alone, which is then not
    shown here. Where FHEAT_CACHE is empty, no network is kept.

    Example: fheat cache --clear
    """

    clear: bool = False
    """Remove all networks and kernels."""
    json: bool = False
    """Print the result as JSON."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(CacheOptions, "cache", arguments)
    folder = cache_folder()
    if folder is not None:
        check_folder(folder, writable=False)
    entries = clear_cache() if options.clear else cached()
    kernels, kernel_bytes = clear_kernels() if options.clear else kept_kernels()
    networks, total = [entry for entry in entries if entry.kind != NOTE], sum(entry.bytes for entry in entries)
    if options.json:
        rows = [{"name": one.file.name, "kind": one.kind, "bytes": one.bytes, "used": one.used} for one in entries]
        told = {"folder": None if folder is None else str(folder), "bytes": total, "entries": rows}
        told |= {"kernels": kernels, "kernel_bytes": kernel_bytes}
        print(json.dumps(told | {"removed": options.clear}, indent=1))
        return
    if folder is None:
        print(f"nothing is kept: the environment variable {VARIABLE} is empty, or there is no home folder")
        return
    said = f"{counted(len(networks), 'compiled network')}, {total / 1e6:.1f} MB; "
    said += f"{counted(kernels, 'GPU kernel')}, {kernel_bytes / 1e6:.1f} MB"
    print(printable(f"{folder}: {'removed ' if options.clear else ''}{said}"))
    for entry in [] if options.clear else networks:
        compiler = entry.kind.split("-")[0]
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(printable(f"  {compiler:9} {entry.bytes / 1e6:7.1f} MB  last used {day}  {entry.file.name}"))

"""Lines of `log.jsonl`: one JSON object each, whose last number is the CRC-32 of the line without it.

    {"iteration": 3, "total": 0.81, "crc32": 2710934021}

What a run logged is read back, for its report and for the outcome of an experiment, so a line that was changed since
must be known for it. Logs of earlier versions have no such number; a log has it in every line or in none.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from zlib import crc32

CHECK: Final = "crc32"
_MARK: Final = f', "{CHECK}": '.encode()


def to_line(values: Mapping[str, Any]) -> bytes:
    """Return a line of a log with its checksum and the line end."""
    text = json.dumps(values).encode()
    return text[:-1] + _MARK + str(crc32(text)).encode() + b"}\n"


def is_checked(texts: Iterable[bytes]) -> bool:
    """Return whether these are the lines of a log with checksums; then a line without one is damaged."""
    return any(_MARK in text for text in texts)


def split_log(content: bytes) -> list[bytes]:
    """Return the lines of a log without their ends; the beginning of a line that was cut off at the end is left out."""
    *lines, rest = content.split(b"\n")
    is_whole = b"}" in rest.rpartition(_MARK)[2] and _MARK in rest  # and only its line end is missing, or damaged
    return [*lines, rest] if is_whole else lines


def from_line(text: bytes, *, checked: bool) -> dict[str, Any]:
    """Return what a line without its end says, or raise `ValueError` where it is damaged."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    if checked:
        stated = values.pop(CHECK, None)
        if to_line(values) != text + b"\n":
            raise ValueError(f"its checksum is {stated}, and its content has another one")
    return values

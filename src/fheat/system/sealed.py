"""Sealed JSON: a small file that is read back to decide something says by itself whether a byte of it was changed.

The content is written in one way only (keys in order, one space of indent), and `seal` is the sha256 of what is written
without it. Bytes that are not exactly those that the content gives were changed since.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

SEAL: Final = "seal"


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file with this content and its seal."""
    return _canonical({**content, SEAL: sha256(_canonical(content))})


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content of a sealed JSON file, or raise `ValueError` where a byte was changed.

    A file without a seal, as earlier versions wrote them, is returned as it is. Whoever takes such a file must refuse
    names that it does not know: a seal whose name was changed is one.
    """
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    if SEAL not in content:
        return content
    seal = content.pop(SEAL)
    if seal != sha256(_canonical(content)) or data != sealed(content):
        raise ValueError("its seal is broken: the file was changed")
    return content


def sha256(data: bytes) -> str:
    """Return the sha256 of some bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()

"""Mutations of plain bytes, for every format: flipped bits, other bytes, and missing, additional or moved ones."""

from random import Random
from typing import Any

INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x20, 0x22, 0x7B, 0x5B)
STEPS = ("flip", "byte", "cut", "append", "zeros", "remove", "insert", "copy", "swap")


def draw_raw(random: Random, count: int | None = None) -> list[list[Any]]:
    """Return one to three steps for `apply_raw`; positions are taken modulo the length of the content."""
    number = count or random.choice((1, 1, 1, 2, 3))
    return [_step(random, random.choice(STEPS)) for _ in range(number)]


def _step(random: Random, name: str) -> list[Any]:
    where = random.randrange(2**20)
    length = random.choice((1, 2, 4, 8, 16, 64, 333))
    match name:
        case "flip":
            return [name, random.randrange(2**23)]
        case "byte":
            return [name, where, random.choice((*INTERESTING, random.randrange(256)))]
        case "append" | "insert":
            return [name, where, random.randbytes(min(length, 64)).hex()]
        case "copy" | "swap":
            return [name, where, random.randrange(2**20), length]
        case _:
            return [name, where, length]


def apply_raw(content: bytes, steps: list[list[Any]]) -> bytes:
    """Return the content after the steps that are known here; others are passed over."""
    for name, *arguments in steps:
        if name in STEPS and content:
            content = bytes(_APPLY[name](bytearray(content), *arguments))
    return content


def _flip(data: bytearray, bit: int) -> bytearray:
    data[(bit // 8) % len(data)] ^= 1 << bit % 8
    return data


def _byte(data: bytearray, where: int, value: int) -> bytearray:
    data[where % len(data)] = value
    return data


def _remove(data: bytearray, where: int, length: int) -> bytearray:
    start = where % len(data)
    return data[:start] + data[start + length :]


def _zeros(data: bytearray, where: int, length: int) -> bytearray:
    start = where % len(data)
    end = min(start + length, len(data))
    data[start:end] = bytes(end - start)
    return data


def _insert(data: bytearray, where: int, text: str) -> bytearray:
    start = where % len(data)
    return data[:start] + bytes.fromhex(text) + data[start:]


def _copy(data: bytearray, source: int, target: int, length: int) -> bytearray:
    part = data[source % len(data) :][:length]
    start = target % len(data)
    data[start : start + len(part)] = part
    return data


def _swap(data: bytearray, first: int, second: int, length: int) -> bytearray:
    a, b = sorted((first % len(data), second % len(data)))
    length = min(length, b - a, len(data) - b)
    data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]
    return data


_APPLY = {
    "flip": _flip,
    "byte": _byte,
    "cut": lambda data, where, length: data[: where % len(data)],
    "append": lambda data, where, text: data + bytes.fromhex(text),
    "zeros": _zeros,
    "remove": _remove,
    "insert": _insert,
    "copy": _copy,
    "swap": _swap,
}

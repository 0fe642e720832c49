"""Damage to frames, packets and greetings, each a function of a seed."""

import json
import random
import struct
from collections.abc import Sequence

ODD = [0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**24, 2**28, 2**31 - 1, 2**31, 2**32 - 1]
JUNK = [
    None, True, False, 0, -1, 2**31, 2**63, 10**40, 1e308, float("inf"), float("nan"), "", "x", "\ud800", "ward-a",
    "x" * 3000, [], [[]], [1, 2], {}, {"a": {"b": [None]}}, [[1, 12, 12], 3, {}, 0], [[65536] * 4, 3, {}, 0],
]  # fmt: skip


def flip(dice: random.Random, data: bytearray) -> bytearray:
    for _ in range(dice.randint(1, 8)):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return data


def cut(dice: random.Random, data: bytearray) -> bytearray:
    return data[: dice.randrange(len(data))]


def lengthen(dice: random.Random, data: bytearray) -> bytearray:
    return data + dice.randbytes(dice.choice([1, 15, 16, 200]))


def drop(dice: random.Random, data: bytearray) -> bytearray:
    start = dice.randrange(len(data))
    del data[start : start + dice.randint(1, 16)]
    return data


def double(dice: random.Random, data: bytearray) -> bytearray:
    start = dice.randrange(len(data))
    return data[:start] + data[start : start + 32] + data[start:]


def number(dice: random.Random, data: bytearray) -> bytearray:
    """A length, a shape or a count that lies: most of them stand in the first hundred bytes."""
    at = dice.randrange(max(1, min(len(data), 100) - 4))
    struct.pack_into("<I", data, at, dice.choice(ODD)) if len(data) >= at + 4 else data.append(1)
    return data


def code(dice: random.Random, data: bytearray) -> bytearray:
    """A dtype, a codec, a kind or a version that is another one."""
    data[dice.randrange(min(len(data), 64))] = dice.choice([0, 1, 2, 3, 4, 9, 10, 64, 255])
    return data


def noise(dice: random.Random, data: bytearray) -> bytearray:
    return bytearray(dice.randbytes(dice.choice([0, 1, 15, 16, 17, 40, 400])))


KINDS = [flip, cut, lengthen, drop, double, number, number, code, code, noise]


def damaged(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """`data` with one to three kinds of damage, or half of it and half of another one."""
    made = bytearray(data)
    if dice.random() < 0.1:
        another = dice.choice(corpus)
        return bytes(made[: dice.randrange(len(made))] + another[dice.randrange(len(another)) :])
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        made = dice.choice(KINDS)(dice, made) if made else made
    return bytes(made)


def greeting(dice: random.Random, facts: dict) -> bytes:
    """The JSON of a greeting with facts exchanged, left out or damaged as text."""
    facts = dict(facts)
    for _ in range(dice.randint(1, 3)):
        key = dice.choice([*facts, "purpose", "more"])
        if dice.random() < 0.2:
            facts.pop(key, None)
        elif key == "purpose":
            facts[key] = dice.choice(["predict", "train", 3])
        else:
            facts[key] = dice.choice(JUNK)
    text = json.dumps(facts).encode()
    return damaged(dice, text, [text]) if dice.random() < 0.3 else text

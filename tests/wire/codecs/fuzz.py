"""Damaged payloads for codecs and for frames, each a function of a seed, and what may come of them."""

import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch
from toys import GUARDS, TASK, batches

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator, seeded
from cutlayer.guards import HEVC, JPEG
from cutlayer.wire import frames as wire
from cutlayer.wire.codecs import BY_TAG, Half, Prefix, Raw, Sparse

LIMIT = 4 << 20  # bytes a frame may unpack to: what a server of small plans allows
ROOM = 256.0  # MiB the process may grow by, however large the claims are
CUT = (4, 5, 5)
ODD = [0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 65536, 2**24, 2**28, 2**28 + 1, 2**31 - 1, 2**31, 2**32 - 1]
HUGE = [(3, 1 << 26), (1 << 20, 1 << 20), (1 << 31, 2), (1 << 16,) * 4, (2**32 - 1,), (5, 1 << 24)]
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@dataclass(frozen=True)
class Payload:
    """One buffer as a codec wrote it."""

    tag: int
    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


def frames() -> list[bytes]:
    """What guards really send, gradients, answers and labels beside it; in float64 and channels last as well."""
    made = []
    for dtype in (torch.float32, torch.float64):
        z = torch.randn(6, *CUT, generator=generator(1)).to(dtype)
        for guard in GUARDS:
            with seeded(7):
                module = guard.build(CUT, public=1, private=2, task=TASK).to(dtype)
                seen = module(z, batches(1)[0]).seen.detach()
            made.append(Message(Kind.FORWARD, 0, 3, {"z": seen}, {"z": module.packed} if module.packed else None))
        sparse, rows = torch.where(z > 1, z, 0.0), z.clone()
        rows[..., 2:] = 0
        made += [
            Message(Kind.LOSS, 1, 2, {"z": z.to(memory_format=torch.channels_last), "y": torch.arange(6)}),
            Message(Kind.FORWARD, 1, 2, {"u": sparse.to(memory_format=torch.channels_last)}),
            Message(Kind.BACKWARD, 1, 2, {"du": sparse, "dz": rows}),
            Message(Kind.BACKWARD, 1, 2, {"dz": z.bfloat16().to(dtype)}),
        ]
        for guard, channels in product((JPEG(), HEVC()), (1, 3)):  # these need pictures
            shown, packed = guard.compress(torch.rand(2, channels, 24, 17, generator=generator(2)).to(dtype))
            made.append(Message(Kind.FORWARD, 0, 1, {"z": shown}, {"z": packed}))
    framed = [bytes(wire.encode(message)) for message in made]
    by_codec = [Message(Kind.BACKWARD, 1, 2, {"dz": torch.where(z > 1, z, 0.0)})]
    return framed + [bytes(wire.encode(m, c)) for m, c in product(by_codec, (Raw(), Sparse(), Prefix(), Half()))]


def payloads(whole: list[bytes]) -> list[Payload]:
    """The buffers of frames, as `wire.decode` hands them to codecs."""
    found, listening = [], {}

    def listen(tag: int, decode: Callable) -> Callable:
        def heard(data, dtype, shape):
            found.append(Payload(tag, bytes(data), dtype, tuple(shape)))
            return decode(data, dtype, shape)

        return heard

    for tag, codec in BY_TAG.items():
        listening[tag] = _Heard(listen(tag, codec.decode))
    saved = dict(BY_TAG)
    try:
        BY_TAG.update(listening)
        for frame in whole:
            wire.decode(frame)
    finally:
        BY_TAG.update(saved)
    return list(dict.fromkeys(found))


class _Heard:
    def __init__(self, decode: Callable):
        self.decode = decode


# ------------------------------------------------------------------ damage to bytes
def flip(dice: random.Random, data: bytearray) -> bytearray:
    for _ in range(dice.choice([1, 1, 1, 2, 8])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return data


def cut(dice: random.Random, data: bytearray) -> bytearray:
    return data[: dice.choice([dice.randrange(len(data)), len(data) - 1])]


def lengthen(dice: random.Random, data: bytearray) -> bytearray:
    return data + dice.choice([bytes(1), bytes(16), dice.randbytes(1), dice.randbytes(200)])


def drop(dice: random.Random, data: bytearray) -> bytearray:
    start = dice.randrange(len(data))
    del data[start : start + dice.randint(1, 16)]
    return data


def double(dice: random.Random, data: bytearray) -> bytearray:
    start = dice.randrange(len(data))
    return data[:start] + data[start : start + 32] + data[start:]


def claim(dice: random.Random, data: bytearray) -> bytearray:
    """A length, a count or a shape that lies: they stand at the beginning."""
    at = dice.randrange(max(1, min(len(data), dice.choice([24, 64])) - 3))
    if len(data) >= at + 4:
        told = struct.unpack_from("<I", data, at)[0]
        near = [(told + step) % 2**32 for step in (-1, 1)] + [told * 2 % 2**32, told // 2]
        struct.pack_into("<I", data, at, dice.choice([*ODD, *near]))
    return data


def code(dice: random.Random, data: bytearray) -> bytearray:
    """A form, a width, a dtype or a codec that is another one."""
    data[dice.randrange(min(len(data), 64))] = dice.choice([*range(18), 31, 32, 64, 255])
    return data


def fill(dice: random.Random, data: bytearray) -> bytearray:
    """A stretch of the same byte: NaN, largest codes, empty tables."""
    start = dice.randrange(len(data))
    end = min(len(data), start + dice.choice([2, 4, 8, 64]))
    data[start:end] = bytes([dice.choice([0, 0x7F, 0xFF])]) * (end - start)
    return data


def noise(dice: random.Random, data: bytearray) -> bytearray:
    return bytearray(dice.randbytes(dice.choice([0, 1, 9, 10, 16, 33, len(data)])))


KINDS = (flip, flip, cut, lengthen, drop, double, claim, claim, code, fill, noise)


def damaged(dice: random.Random, data: bytes) -> tuple[str, bytes]:
    made, kinds = bytearray(data), [dice.choice(KINDS) for _ in range(dice.choice([1, 1, 1, 2, 3]))]
    for kind in kinds:
        made = kind(dice, made) if made else made
    return kinds[0].__name__ if len(kinds) == 1 else "several", bytes(made)


def _other_shape(dice: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    if dice.random() < 0.3:
        return dice.choice(HUGE)
    sides = list(shape) or [1]
    at = dice.randrange(len(sides))
    sides[at] = dice.choice([0, sides[at] + 1, max(0, sides[at] - 1), 2 * sides[at]])
    made = [tuple(sides), (*shape, 2), shape[:-1], (prod(shape),), shape[::-1], ()]
    return dice.choice(made)


# ------------------------------------------------------------------ what may come of it
@dataclass
class Found:
    """Outcomes by codec and damage, and what it took."""

    outcomes: Counter = field(default_factory=Counter)  # (codec, damage, "refused" or "read")
    seconds: float = 0.0
    slowest: float = 0.0  # seconds of the slowest payload
    grown: float = 0.0  # MiB

    @property
    def count(self) -> int:
        return sum(self.outcomes.values())

    def by(self, place: int) -> dict[str, dict[str, int]]:
        table: dict[str, dict[str, int]] = {}
        for key, count in sorted(self.outcomes.items()):
            table.setdefault(key[place], {"refused": 0, "read": 0})[key[2]] += count
        return table


def most_memory() -> float:
    """MiB this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(found: Found, codec: str, kind: str, read: Callable[[], None]) -> None:
    """`read` returns or raises ValueError; anything else is a bug, and the test ends with it."""
    began = time.perf_counter()
    try:
        read()
        outcome = "read"
    except ValueError as error:  # WireError is one
        outcome = "refused" if str(error).strip() else "refused without a word"
    took = time.perf_counter() - began
    found.seconds += took
    found.slowest = max(found.slowest, took)
    found.outcomes[codec, kind, outcome] += 1


def into_codecs(count: int, seed: int) -> Found:
    """Damaged buffers straight into decoders: bytes, shapes, dtypes and codecs that are not theirs."""
    dice, found, corpus = random.Random(seed), Found(), payloads(frames())
    by_tag = {tag: [one for one in corpus if one.tag == tag] for tag in BY_TAG}
    missing = [repr(BY_TAG[tag]) for tag, those in by_tag.items() if not those]
    assert not missing, f"no guard in toys.GUARDS sends {missing}: add one, or a message to frames()"
    before = most_memory()
    for number in range(count):
        tag = list(BY_TAG)[number % len(BY_TAG)]
        one = dice.choice(by_tag[tag])
        data, dtype, shape, exact = one.data, one.dtype, one.shape, False
        kind = dice.choice(["bytes"] * 6 + ["shape", "dtype", "tag", "noise"])
        if kind == "bytes":
            kind, data = damaged(dice, data)
        elif kind == "shape":
            shape, exact = _other_shape(dice, shape), True
        elif kind == "dtype":
            dtype = dice.choice(DTYPES)
        elif kind == "tag":
            tag = dice.choice([other for other in BY_TAG if other != tag])
        else:
            data = dice.randbytes(dice.choice([0, 1, 8, 17, 100, len(data)]))

        wrong = exact and prod(shape) != prod(one.shape)

        def read(tag=tag, data=data, dtype=dtype, shape=shape, wrong=wrong):
            tensor = BY_TAG[tag].decode(memoryview(data), dtype, shape)
            assert tuple(tensor.shape) == tuple(shape) and tensor.dtype == dtype, "another tensor than was claimed"
            assert not wrong, f"bytes of another number of elements were read as {shape}"

        _timed(found, repr(BY_TAG[tag]), kind, read)
    found.grown = most_memory() - before
    return found


def into_frames(count: int, seed: int) -> Found:
    """Damaged frames into `wire.decode`, as a server reads them."""
    dice, found, corpus = random.Random(seed), Found(), frames()
    before = most_memory()
    for _ in range(count):
        frame = dice.choice(corpus)
        kind, data = damaged(dice, frame)
        if dice.random() < 0.1:
            other = dice.choice(corpus)
            kind, data = "spliced", frame[: dice.randrange(len(frame))] + other[dice.randrange(len(other)) :]

        def read(data=data):
            message = wire.decode(data, LIMIT)
            for tensor in message.tensors.values():
                assert tensor.numel() * tensor.element_size() <= LIMIT
                tensor.reshape(-1)[:1].tolist()  # it has the memory it claims

        _timed(found, "frame", kind, read)
    found.grown = most_memory() - before
    return found

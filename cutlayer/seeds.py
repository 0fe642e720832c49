"""Randomness by name: a seed is a function of who uses it and when, so a replayed step is the same step."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(root: int, *names: object) -> int:
    """A 63-bit seed for `names` under `root`. One way: the root does not follow from it."""
    text = "/".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator; nothing else in the process draws from it."""
    made = torch.Generator(device)
    _seed(made, seed)
    return made


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block under its own seed and leave the caller's random state as it was."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        _seed(torch.default_generator, seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


# Where the 624 words of the Mersenne twister lie in torch's state of a CPU generator, eight bytes each.
_WORDS = slice(24, 24 + 8 * 624)


def _seed(made: torch.Generator, seed: int) -> None:
    """All bits of `seed` count. torch's own seeding of a CPU generator uses 32 of them, and a secret that hangs on
    32 bits is found by trying: a day's work for keys, noise or a head's first weights."""
    made.manual_seed(seed)
    if made.device.type != "cpu":
        return  # these use 64 bits
    state = made.get_state().numpy()
    words = state[_WORDS].view(np.uint64)
    if words[0] != seed & 0xFFFFFFFF:
        raise RuntimeError("this torch keeps the state of its generators in another form: cutlayer cannot seed it")
    stream = hashlib.shake_256(seed.to_bytes(8, "big", signed=seed < 0)).digest(4 * 624)
    words[:] = np.frombuffer(stream, np.uint32)
    made.set_state(torch.from_numpy(state))

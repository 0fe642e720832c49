"""Randomness by name: a seed is a function of who uses it and when, so a replayed step is the same step."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(root: int, *names: object) -> int:
    """A 63-bit seed for `names` under `root`. One way: the root does not follow from it."""
    text = "/".join([str(root), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator; nothing else in the process draws from it."""
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block under its own seed and leave the caller's random state as it was."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield

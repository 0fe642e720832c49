"""Randomness by name: a seed is a function of who uses it and when, so a replayed step is the same step."""

import hashlib
import threading
from contextlib import AbstractContextManager

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


def seeded(seed: int, device: torch.device | str = "cpu") -> AbstractContextManager[None]:
    """Run a block under its own seed and leave the caller's random state as it was."""
    kind = device if isinstance(device, str) else device.type
    return _SeededThere(seed, torch.device(device)) if kind.startswith("cuda") else _SeededHere(seed)


class _SeededHere(AbstractContextManager[None]):
    """Every step of both sides comes here: `fork_rng` takes its time, and so does a generator function."""

    __slots__ = ("_before", "_seed")

    def __init__(self, seed: int):
        self._seed = seed

    def __enter__(self) -> None:
        self._before = torch.default_generator.get_state()
        _seed(torch.default_generator, self._seed)

    def __exit__(self, *error: object) -> None:
        torch.default_generator.set_state(self._before)


class _SeededThere(_SeededHere):
    """The host's generator, and that of a CUDA device, whose state is two numbers on the host."""

    __slots__ = ("_device", "_generator", "_there")

    def __init__(self, seed: int, device: torch.device):
        super().__init__(seed)
        self._device = device

    def __enter__(self) -> None:
        self._generator: torch.Generator | None = None
        if torch.cuda.is_current_stream_capturing():
            return  # what is captured draws nothing, and a generator may not be touched then
        super().__enter__()
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        self._generator = torch.cuda.default_generators[index]
        self._there = self._generator.get_state()
        _seed(self._generator, self._seed)

    def __exit__(self, *error: object) -> None:
        if self._generator is not None:
            self._generator.set_state(self._there)
            super().__exit__(*error)


Drawn = tuple[torch.Tensor, torch.Tensor | None]


def drawn(device: torch.device) -> Drawn:
    """Where the host's generator stands, and that of `device` if it is a GPU."""
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.default_generator.get_state(), there


def draw_from(state: Drawn, device: torch.device) -> None:
    """Go on from where they stood then."""
    here, there = state
    torch.default_generator.set_state(here)
    if there is not None:
        torch.cuda.set_rng_state(there, device)


# Where things lie in torch's state of a CPU generator: its seed, and the 624 words of the Mersenne twister, eight
# bytes each.
_SEED, _WORDS = slice(0, 8), slice(24, 24 + 8 * 624)


def _seed(made: torch.Generator, seed: int) -> None:
    """All bits of `seed` count. torch's own seeding of a CPU generator uses 32 of them, and a secret that hangs on
    32 bits is found by trying: a day's work for keys, noise or a head's first weights."""
    if made.device.type != "cpu":
        made.manual_seed(seed)
        return  # these use 64 bits
    stream = hashlib.shake_256(seed.to_bytes(8, "big", signed=seed < 0)).digest(4 * 624)
    _blank.seed[0], _blank.words[:] = seed & 0xFFFFFFFFFFFFFFFF, np.frombuffer(stream, np.uint32)
    made.set_state(_blank.state)


class _Blank(threading.local):
    """The state of a generator that was just seeded, to be filled in; every thread has its own."""

    def __init__(self) -> None:
        seed = 0x0123456789ABCDEF
        self.state = torch.Generator().manual_seed(seed).get_state()
        self.seed, self.words = (self.state.numpy()[part].view(np.uint64) for part in (_SEED, _WORDS))
        if (self.seed[0], self.words[0]) != (seed, seed & 0xFFFFFFFF):
            raise RuntimeError(
                "this torch keeps the state of its generators in another form: cutlayer cannot seed it"
            )


_blank = _Blank()

"""Frames of wire version 1 that a checkout writes: every kind and dtype, every codec. For `same_results.py`."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkout_names import codec_thing, module


def frames(name: str, folder: Path) -> dict[str, Any]:
    """The frames of one group of messages, whole, and what is said of their sizes without encoding them."""
    room, found = module("frames"), {}
    for what, (message, codec) in GROUPS[name.removeprefix("frames/")]().items():
        frame = bytes(room.encode(message, codec))
        found[what] = FRAME + base64.b64encode(frame).decode()
        found[f"size of {what}"] = str(room.size(message, codec))
    return {"bytes": found}


FRAME = "frame "
Letters = dict[str, tuple[Any, Any]]  # what it is -> message, and the codec that is asked for


def _letter(kind: str = "FORWARD", packed: Any = None, /, **tensors: Any) -> Any:
    room = module("message")
    return room.Message(room.Kind[kind], 3, 1 << 33, tensors, packed or {})


def _floats(*shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def _kinds() -> Letters:
    names = [kind.name for kind in sorted(module("message").Kind)]
    return {
        **{name: (_letter(name, None, z=_floats(3, 2)), None) for name in names},
        **{f"{name}, empty": (_letter(name), None) for name in names},
    }


def _dtypes() -> Letters:
    import torch

    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    return {name: (_letter(z=(9 * _floats(5, 30)).to(getattr(torch, name))), None) for name in names}


def _shapes() -> Letters:
    import torch

    found = {"scalar": _floats(), "none": _floats(0, 4), "one": _floats(7), "six": _floats(1, 2, 1, 3, 1, 2)}
    found["channels last"] = _floats(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found["not in one piece"] = _floats(6, 8).T
    several = {f"täg{number}": _floats(number, 3) for number in range(1, 5)}
    return {**{name: (_letter(z=one), None) for name, one in found.items()}, "several": (_letter(**several), None)}


def _zeros() -> dict[str, Any]:
    import torch

    dense, dice = _floats(12, 10), torch.rand(12, 10, generator=torch.Generator().manual_seed(6))
    ends = torch.where(torch.arange(10) < torch.arange(12)[:, None] % 7, dense, 0.0)
    return {
        "dense": dense,
        "pruned": torch.where(dice < 0.4, dense, 0.0),
        "few": torch.where(dice < 0.04, dense, 0.0),
        "ends": ends,
        "as bfloat16": dense.bfloat16().float(),
        "as float16": dense.half().double(),
        "nothing": torch.zeros(12, 10),
    }


def _chosen() -> Letters:
    found: Letters = {name: (_letter(z=one), None) for name, one in _zeros().items()}
    return found | {f"{name}, weights": (_letter("WEIGHTS", None, z=one), None) for name, one in _zeros().items()}


def _asked() -> Letters:
    codecs = {name: codec_thing(name)() for name in ("Raw", "Sparse", "Prefix", "Half")}
    return {f"{c} of {name}": (_letter(z=t), codec) for c, codec in codecs.items() for name, t in _zeros().items()}


def _drawn(most: int, *shape: int) -> Any:
    import torch

    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(7))


def _ready(of: Any, *shape: int) -> tuple[Any, Any]:
    return _letter("FORWARD", {"z": of}, z=_floats(*shape)), None


def _gridded(bits: int, grids: int) -> Any:
    return codec_thing("Gridded")(_drawn(1 << bits, 8, 40), _floats(grids), _floats(grids).abs(), bits)


def _grids() -> Letters:
    return {f"{b} bits, {grids} grids": _ready(_gridded(b, grids), 8, 40) for b in (1, 3, 8) for grids in (1, 8)}


def _entropies() -> Letters:
    coded = codec_thing("Coded")
    return {f"{b} bits, {grids} grids": _ready(coded(_gridded(b, grids)), 8, 40) for b in (1, 3) for grids in (1, 8)}


def _columns() -> Letters:
    import torch

    def made(length: int) -> Any:
        at, widths = torch.arange(0, 20, 3), torch.tensor([0, 1, 3, 15, 0, 2, 8])
        codes = torch.stack([_drawn(1 << int(width), 6) for width in widths if width])
        return codec_thing("Columned")(
            at=at, widths=widths, means=_drawn(64, 2), low=_drawn(30, 5), high=30 + _drawn(30, 5), codes=codes,
            grids=_floats(4).abs(), ends=6, rows=6, length=length, dtype=torch.float32,
        )  # fmt: skip

    return {f"of {length}": _ready(made(length), 6, length) for length in (24, 300)}


def _codebooks() -> Letters:
    import torch

    made = codec_thing("Worded")
    return {
        f"{books} books": _ready(made(_floats(books, 5, 4), _drawn(5, 30, 6), 23, torch.float32), 30, 23)
        for books in (1, 3)
    }


def _latents() -> Letters:
    import numpy as np

    spreads = codec_thing("Spreads")(
        np.array([20, 30], np.uint8),
        np.array([5, 25, 45], np.uint8),
        np.arange(-3, 3).astype(np.int8).reshape(3, 2),
        2,
    )
    numbers, hyper = _drawn(9, 5, 3, 6, 5) - 4, _drawn(5, 5, 2, 3, 3) - 2
    return {"of whole numbers": _ready(codec_thing("Latent")(numbers.int(), hyper, spreads), 5, 3, 6, 5)}


def _pictures() -> Letters:
    files = tuple(b"what all begin with " + bytes(range(10 * one)) for one in range(1, 4))
    return {f"format {form}": _ready(codec_thing("Album")(files, form), 3, 1, 16, 16) for form in (0, 1)}


GROUPS: dict[str, Callable[[], Letters]] = {
    "kinds": _kinds,
    "dtypes": _dtypes,
    "shapes": _shapes,
    "chosen codec": _chosen,
    "Raw Sparse Prefix Half": _asked,
    "Grid": _grids,
    "Columns": _columns,
    "Codebook": _codebooks,
    "Entropy": _entropies,
    "Latents": _latents,
    "Pictures": _pictures,
}

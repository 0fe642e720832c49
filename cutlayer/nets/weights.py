"""A whole network's weights into the parts that a party holds: all that is asked for, or nothing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Net, Shape
from .weight_files import few, read_state

PARTS = ("head", "body", "tail")
COUNTER = ".num_batches_tracked"  # older checkpoints lack it, and torch does not insist on it either
STATISTICS = (".running_mean", ".running_var", COUNTER)


def load_weights(
    path: Path | str,
    net: Net,
    shape: Shape,
    classes: int,
    *,
    head: nn.Module | None = None,
    body: nn.Module | None = None,
    tail: nn.Module | None = None,
) -> None:
    """Fill the given parts of `net` from a whole network's state dict in a .safetensors, .pt or .pth file.

    `shape` and `classes` are those the network was built for. The file has the names of the network's published
    checkpoint (torchvision's for ResNet18, ResNet50, VGG16, DeepLabV3 and MobileNetV3Large, your model's for `Own`)
    or ours: `head.`, `body.` or `tail.`, then the part's own names. A part that is not given stays as it is. A file
    of ResNet-50 alone fills the backbone of DeepLabV3, and nothing else.

    Missing and surplus keys, other shapes, damaged files and files with code in them raise one ValueError, and
    then nothing was loaded. Code is never run.
    """
    path, given = Path(path), _given(head, body, tail)
    if not given:
        raise ValueError("name the parts to fill: head=, body= or tail=")
    found = {key: t for key, t in read_state(path).items() if not key.startswith(net.unread)}
    everything = given | _elsewhere(net, shape, classes, given)
    layouts = (False,) if net.tail_name is None else (True, False)
    published = max(layouts, key=lambda layout: len(_states(net, everything, layout).keys() & found.keys()))
    known = _states(net, everything, published)
    wanted = _states(net, given, published)
    if of_backbone := _of_backbone(net, found, _states(net, everything, True) if net.backbone else {}):
        found, known = of_backbone, of_backbone
        wanted = {key: tensor for key, tensor in _states(net, given, True).items() if key in of_backbone}
    misfit = _compare(found, wanted, known)
    if any(misfit):
        hints = _hints(net, found, wanted, misfit, _states(net, {"tail": everything["tail"]}, published))
        raise ValueError(f"{path} does not fit {net!r}: {misfit}. {''.join(hints)}Nothing was loaded.")
    with torch.no_grad():
        for key in wanted.keys() & found.keys():
            wanted[key].copy_(found[key])


def _of_backbone(net: Net, found: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a file has of the backbone, under the names it has here; nothing if it is not a file of that alone."""
    names = {key for key in known if key.startswith(net.backbone) and not key.endswith(COUNTER)}
    if not names or any(key.removeprefix(net.backbone) not in found for key in names):
        return {}
    return {net.backbone + key: tensor for key, tensor in found.items() if net.backbone + key in known}


def whole_state(
    net: Net, *, head: nn.Module | None = None, body: nn.Module | None = None, tail: nn.Module | None = None
) -> dict[str, Tensor]:
    """The given parts as one state dict, under the names that `load_weights` reads; no copies.

    Published names where the network has them, so that other programs can read the file, too; else ours.
    """
    return _states(net, _given(head, body, tail), published=net.tail_name is not None)


def _given(*parts: nn.Module | None) -> dict[str, nn.Module]:
    return {name: part for name, part in zip(PARTS, parts, strict=True) if part is not None}


def _elsewhere(net: Net, shape: Shape, classes: int, given: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The parts that another party holds, without storage: their keys in the file are not surplus."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        makers = {"head": net.head, "body": net.body, "tail": lambda shape: net.tail(shape, classes)}
        return {part: make(shape) for part, make in makers.items() if part not in given}


def _states(net: Net, parts: Mapping[str, nn.Module], published: bool) -> dict[str, Tensor]:
    states: dict[str, Tensor] = {}
    for part, module in net.written(parts).items():
        prefix = f"{part}."
        if published:
            prefix = f"{net.tail_name}." if part == "tail" and net.tail_name else ""
        states |= {prefix + key: tensor for key, tensor in module.state_dict().items()}
    return states


class _Misfit(NamedTuple):
    """Keys that do not fit, by reason; the last two with what was found."""

    missing: list[str]
    surplus: list[str]
    shapes: dict[str, str]
    kinds: dict[str, str]

    def __str__(self) -> str:
        reasons = {"missing": self.missing, "surplus": self.surplus}
        reasons |= {"misshapen": list(self.shapes.values()), "not plain numbers": list(self.kinds.values())}
        return "; ".join(
            f"{len(keys)} {'key is' if len(keys) == 1 else 'keys are'} {reason} ({few(keys)})"
            for reason, keys in reasons.items()
            if keys
        )


def _compare(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> _Misfit:
    pairs = {key: (found[key], tensor) for key, tensor in wanted.items() if key in found}
    return _Misfit(
        missing=[key for key in wanted if key not in found and not key.endswith(COUNTER)],
        surplus=[key for key in found if key not in known],
        shapes={
            key: f"{key} is {tuple(there.shape)} and not {tuple(here.shape)}"
            for key, (there, here) in pairs.items()
            if there.shape != here.shape
        },
        kinds={key: f"{key}: {t.dtype}" for key, (t, here) in pairs.items() if not _same_kind(t, here)},
    )


def _same_kind(there: Tensor, here: Tensor) -> bool:
    # Half precision is fine. Quantised, sparse or complex numbers would fail half way or lose their meaning.
    plain = there.layout is torch.strided and there.device.type == "cpu" and not there.is_quantized
    return plain and there.is_floating_point() == here.is_floating_point() and not there.is_complex()


def _hints(
    net: Net, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], misfit: _Misfit, tail: Mapping[str, Tensor]
) -> Iterator[str]:
    if of_tail := [key for key in misfit.shapes if key in tail and found[key].dim()]:
        there, here = len(found[of_tail[0]]), len(wanted[of_tail[0]])
        hint = "leave the tail out (skip_tail=True)"
        yield f"The file's last layer is for {there} classes, this one for {here}: {hint}. "
    elif misfit.missing and all(key in tail for key in misfit.missing):
        yield "The file has no last layer: leave the tail out (skip_tail=True). "
    if misfit.surplus and all(key.endswith(STATISTICS) for key in misfit.surplus):
        yield "The file is of a network with BatchNorm: build it with norm='batch'. "
    if net.tail_name is None and misfit.surplus:
        yield f"{type(net).__name__} has no published names: keys start with head., body. or tail. "

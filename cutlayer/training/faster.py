"""Faster ways to compute, for who asks: other bits, within a band that tests hold. Nothing here is on by itself.

What crosses the cut stays float32 in every one of them, for guards and whoever listens. With bf16 the numbers of z
and u fit into two bytes, and the wire makes use of that.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .im2col import multiply

PRECISIONS = ("float32", "tf32", "bf16")
# How far weights may be from those of the plain way after an epoch, as a share of how far training moved them.
BANDS = {"tf32": 0.05, "bf16": 0.3, "channels_last": 0.001, "im2col": 0.001, "compile": 0.01}


@dataclass(frozen=True)
class Faster:
    """Which of them were asked for."""

    precision: str = ""  # empty: as torch is set
    channels_last: bool = False
    im2col: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.precision and self.precision not in PRECISIONS:
            raise ValueError(f"--precision is one of {', '.join(PRECISIONS)}; got {self.precision!r}")

    def refuse_unfit(self, device: torch.device) -> None:
        if self.precision == "tf32" and device.type != "cuda":
            raise ValueError("--precision tf32 is how NVIDIA's GPUs multiply: take --device cuda, or leave it out")

    def begin(self) -> None:
        """What is set for the whole process."""
        if self.precision in ("float32", "tf32"):
            allowed = self.precision == "tf32"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed

    def prepare(self, *parts: nn.Module) -> None:
        """Have these parts of a network compute so. In place: names and optimizers stay as they are."""
        for part in parts:
            if not any(True for _ in part.parameters()):
                continue
            if self.channels_last:
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                part.register_forward_pre_hook(_channels_last)
            if self.im2col:
                multiply(part)
            if self.precision == "bf16":
                part.register_forward_pre_hook(_begin_bf16)
                part.register_forward_hook(_end_bf16, always_call=True)
            if self.compiled:
                part.compile()

    def __str__(self) -> str:
        ways = {"channels-last": self.channels_last, "im2col": self.im2col, "compiled": self.compiled}
        asked = [self.precision, *(way for way, wanted in ways.items() if wanted)]
        return ", ".join(one for one in asked if one)


AS_ALWAYS = Faster()


def _channels_last(part: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        one.contiguous(memory_format=torch.channels_last) if isinstance(one, torch.Tensor) and one.dim() == 4 else one
        for one in given
    )


_OPEN: list[torch.autocast] = []  # those of parts that are computing, the innermost last


def _begin_bf16(part: nn.Module, given: tuple[Any, ...]) -> None:
    where = next((one.device.type for one in given if isinstance(one, torch.Tensor)), "cpu")
    context = torch.autocast(where, torch.bfloat16)
    context.__enter__()
    _OPEN.append(context)


def _end_bf16(part: nn.Module, given: tuple[Any, ...], found: Any) -> Any:
    _OPEN.pop().__exit__(None, None, None)
    return found.float() if isinstance(found, torch.Tensor) and found.dtype is torch.bfloat16 else found

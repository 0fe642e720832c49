"""Guards as mods of Flower's clients: pip install 'cutlayer[flower]'.

app = ClientApp(mods=[as_mod(Chain(KAnonymous(k=5), Gaussian(scale=0.1)), record="activations")])
"""

import secrets
from typing import Any

import numpy as np
import torch
from torch import nn

try:
    from flwr.app import Array, ArrayRecord, Context, Message
except ImportError as error:
    raise ImportError("mods for Flower need flwr 1.21 or newer: pip install 'cutlayer[flower]'") from error

from ..core.batch import Batch
from ..core.guard import GuardModule, Shape
from .base import Guard


def as_mod(guard: Guard, *, record: str = "activations") -> "GuardMod":
    """A mod that guards the arrays of one record of every reply: samples x whatever a sample is, before they leave.

    KD-UFSL's guard is Chain(KAnonymous(k=5), Gaussian(scale=...)): each sample's row becomes the noised mean of its
    group. Other records, weights for one, leave as they are.
    """
    return GuardMod(guard, record)


class GuardMod:
    """What Flower calls around a client's app."""

    def __init__(self, guard: Guard, record: str):
        asks = guard.reads_samples or guard.reads_classes or guard.reads_gradients or guard.client_only
        if asks or guard.exchange or guard.holds_back or guard.fan_out > 1:
            raise ValueError(
                f"{guard} needs more than the rows of a message, and Flower's client gives a mod no more: take "
                "KAnonymous, Clip, Gaussian, Laplace, Noise, or a chain of these"
            )
        self.guard, self.record = guard, record
        self._private = secrets.randbits(63)
        self._built: dict[Shape, GuardModule] = {}

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if reply.has_error() or not reply.content.array_records:
            return reply
        if self.record not in reply.content.array_records:
            # Passing it on would leave a misspelt record unguarded.
            there = ", ".join(reply.content.array_records)
            raise ValueError(f"the reply has no record {self.record!r} for {self.guard} to guard; it has {there}")
        open_rows = reply.content.array_records[self.record]
        # Drawn, not counted: Flower copies an app with its mods to every client, and two of them would count alike.
        seed = secrets.randbits(63)
        reply.content[self.record] = ArrayRecord(
            {name: Array(self._guarded(array.numpy(), seed, name)) for name, array in open_rows.items()}
        )
        return reply

    def _guarded(self, rows: np.ndarray, seed: int, name: str) -> np.ndarray:
        if rows.ndim < 2 or not np.issubdtype(rows.dtype, np.floating):
            raise ValueError(f"{name} in {self.record!r} is {rows.dtype} of shape {rows.shape}, not samples as rows")
        if len(rows) < self.guard.least_batch:
            raise ValueError(f"{self.guard} needs {self.guard.least_batch} samples at a time; {name} has {len(rows)}")
        z = torch.from_numpy(np.array(rows))
        batch = Batch(z, torch.zeros(len(z), dtype=torch.int64), seed=seed)
        with torch.no_grad():
            seen, _, mine, _ = self._module(tuple(z.shape[1:]))(z, batch)
        return (seen if mine is None else seen[mine]).to(z).numpy()

    def _module(self, shape: Shape) -> GuardModule:
        if shape not in self._built:
            lift = self.guard.lift(shape, 0)
            silent = all(isinstance(part, nn.Identity | nn.Sequential) for part in lift.modules())
            module = self.guard.build(shape, 0, self._private)
            if self.guard.out_shape(shape) != shape or not silent or [*module.parameters()]:
                raise ValueError(
                    f"{self.guard} has a half at the server or weights of its own, which a mod cannot bring there: "
                    "take one that keeps the shape and learns nothing"
                )
            self._built[shape] = module.eval()
        return self._built[shape]

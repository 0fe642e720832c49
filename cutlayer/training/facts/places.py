"""What each place costs where a network can be cut: the client's part, its memory, and what crosses in a step."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from ...core.batch import Batch, Task, made_up
from ...core.remote import Remote
from ...core.seeds import generator
from ...core.split import UShapedNetwork, VanillaNetwork
from ...nets.base import Net, Shape, count_macs, count_parameters, crossing, out_shape
from ...nets.cut import Parts
from ...nets.places import places
from ..step import ClientNetwork
from .memory import client_memory, layer_bytes, total

FEW = 2  # samples that are counted, and twice as many: a batch of others takes as much more for each


def costs(net: Net, task: Task, batch: int, inside_blocks: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each place: name and either figures or `why_not`. Bytes are those of numbers of four bytes, bare."""
    classes = task.classes or None
    for name, parts, why_not in places(net, task.shape, classes, inside_blocks):
        if parts is None:
            yield {"name": name, "why_not": why_not}
            continue
        try:
            yield {"name": name, **_figures(parts, task, batch)}
        except Exception as error:  # whatever a user's layers raise
            yield {"name": name, "why_not": f"it does not run on inputs of {tuple(task.shape)}: {error}"}


def _figures(parts: Parts, task: Task, batch: int) -> dict[str, Any]:
    head, body, tail = parts
    z, beside = crossing(head, task.shape)
    u = out_shape(body, z, beside)
    returns = any(True for _ in tail.parameters())  # the client has the last layers, too: the U shape
    macs = count_macs(head, task.shape) + (count_macs(tail, u, beside) if returns else 0)
    label = out_shape(tail, u, beside)[1:]  # () for a class; a pixel or a place of a text may have one each
    each_way = 4 * batch * (prod(z) + (prod(u) if returns else 0))
    return {
        "z": list(z),
        "parameters": count_parameters(head) + count_parameters(tail),
        "macs": macs,
        "memory": _memory(parts, task, batch, u, label, returns),
        # As much goes as comes: z up, u down, and the gradients of both the other way.
        "bytes_up": each_way + (0 if returns else 8 * batch * prod(label)),  # labels travel
        "bytes_down": each_way,
    }


def _memory(parts: Parts, task: Task, batch: int, u: Shape, label: Shape, returns: bool) -> int:
    """Weights, gradients and what a step keeps of a batch; what an optimizer carries comes on top."""
    split = UShapedNetwork(parts.head, parts.tail) if returns else VanillaNetwork(parts.head)
    client = ClientNetwork(0, split, None, Remote(0, lambda message: message))
    few, double = (
        Batch(made_up(task, count, generator(0)), torch.zeros(count, *label, dtype=torch.long))
        for count in (FEW, 2 * FEW)
    )
    sizes, more = client_memory(client, few, u), client_memory(client, double, u)["activations"]

    def of_batch(least: int, most: int) -> int:
        # What is there whatever a layer is given, such as a table of positions, does not grow with the batch.
        return least + round((most - least) / FEW * (batch - FEW))

    layers = map(of_batch, *(layer_bytes(client, samples, u) for samples in (few, double)))
    return total(sizes | {"activations": of_batch(sizes["activations"], more), "working": max(layers, default=0)})

"""Whether every client has enough samples for the messages of a plan: said before the first step."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from ..core.batch import Batch, Task, made_up
from ..core.compressor import Compressor
from ..core.guard import Shape
from ..core.seeds import generator, seeded
from ..guards import Guard
from .batches import in_batches, micro_batches
from .build import build_client, build_server
from .labels import label_shape
from .plan.plan import Plan
from .plan.shapes import cut_shapes


def refuse_too_few(plan: Plan, counts: Mapping[str, int]) -> None:
    """A guard that needs several samples at a time must find them in every set; a client may not be empty then."""
    least = plan.guard.least_batch
    for whose, count in counts.items():
        if 0 < count < least or (count == 0 and whose.startswith("client") and least > 1):
            raise ValueError(
                f"{whose} has {count} samples, {plan.guard} needs {least} at a time: "
                "fewer clients, more data, or a smaller k"
            )


def refuse_small_batches(plan: Plan, task: Task, counts: Mapping[str, int]) -> None:
    """No batch of an epoch, the last one either, may be smaller than what packs it can work on."""
    cut = cut_shapes(plan, task)
    answers, gradients = plan.compression.answers, plan.compression.gradients
    readers: list[tuple[Guard | Compressor, Shape]] = [
        (plan.guard, cut.shared), (answers, cut.u), (gradients, cut.u), (gradients, cut.sent),
    ]  # fmt: skip
    for whose, count in counts.items():
        rows = _smallest_batch(plan, count)
        for reader, shape in readers:
            if 0 < rows < (fewest := reader.least_rows(shape)):
                raise ValueError(
                    f"{whose} has {count} samples, so with --batch-size {plan.batch_size} one message has {rows} of "
                    f"them, and {reader} needs {fewest}: another batch size, or a setting that leaves more bits"
                )
        least = 2 * plan.guard.least_batch
        if whose.startswith("client") and 0 < rows < least and not _learns_from(rows, plan, task):
            more = f"--batch-size {least}" if count >= least else "fewer clients, more data, or norm='group'"
            raise ValueError(
                f"{whose} has {count} samples, so with --batch-size {plan.batch_size} and {plan.guard} a message has "
                f"a single row, and the network normalises over rows: {more}"
            )


def _learns_from(rows: int, plan: Plan, task: Task) -> bool:
    """Batch normalisation cannot from one row, at home or at the server: of one place nothing is beside it."""
    server = build_server(plan.public(), task)
    client = build_client(replace(plan, private_seed=0), task, 0, server.handle)
    layers = [*server.body.modules(), *client.split.modules()]
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in layers):
        return True
    labels = torch.zeros(rows, *label_shape(plan, task), dtype=torch.int64)
    s = {name: torch.zeros(rows, dtype=torch.int64) for name in task.attributes}
    batch = Batch(made_up(task, rows, generator(0)), labels, s)
    try:
        with seeded(0):
            client.split.train().terms(batch, client.remote)
    except ValueError as error:
        if "value per channel" not in str(error):  # as torch puts it
            raise
        return False
    return True


def _smallest_batch(plan: Plan, count: int) -> int:
    """Rows of the smallest message about `count` samples."""
    index = in_batches(torch.arange(count), plan.batch_size, plan.least_batch)
    return min(len(piece) for batch in index for piece in micro_batches(plan, batch))

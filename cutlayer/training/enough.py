"""Whether every client has enough samples for the messages of a plan: said before the first step."""

from collections.abc import Mapping

import torch
from torch import nn

from ..core.batch import Task
from ..core.compressor import Compressor
from ..core.guard import Shape
from ..guards import Guard
from .batches import in_batches, micro_batches
from .build import build_server
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
        alone = whose.startswith("client") and 0 < rows < 2 * plan.guard.least_batch
        if alone and not _learns_from_a_row(plan, task, cut.sent):
            raise ValueError(
                f"{whose} has {count} samples, so with --batch-size {plan.batch_size} and {plan.guard} a message has "
                "a single row, and the server's network normalises over rows: "
                f"--batch-size {2 * plan.guard.least_batch}"
            )
        for reader, shape in readers:
            if 0 < rows < (least := reader.least_rows(shape)):
                raise ValueError(
                    f"{whose} has {count} samples, so with --batch-size {plan.batch_size} one message has {rows} of "
                    f"them, and {reader} needs {least}: another batch size, or a setting that leaves more bits"
                )


def _learns_from_a_row(plan: Plan, task: Task, sent: Shape) -> bool:
    """Batch normalisation cannot: where one place is left of a row, nothing is beside it."""
    body = build_server(plan.public(), task).body.train()
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in body.modules()):
        return True
    try:
        with torch.no_grad():
            body(torch.zeros(1, *sent))
    except ValueError:
        return False
    return True


def _smallest_batch(plan: Plan, count: int) -> int:
    """Rows of the smallest message about `count` samples."""
    index = in_batches(torch.arange(count), plan.batch_size, plan.least_batch)
    return min(len(piece) for batch in index for piece in micro_batches(plan, batch))

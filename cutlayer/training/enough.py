"""Whether every client has enough samples for the messages of a plan: said before the first step."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace

import torch

from ..core.batch import Batch, Task, made_up
from ..core.compressor import NOTHING, Compressor
from ..core.guard import Shape
from ..core.seeds import generator, seeded
from ..data.base import Parts
from ..guards import Guard
from .batches import in_batches, micro_batches
from .build import build_client, build_server
from .labels import label_shape, why_unfit_labels
from .plan.plan import Plan
from .plan.shapes import cut_shapes

NORMALISES = "more than 1 value per channel"  # as torch puts it


def sample_counts(shares: Sequence[Sized], parts: Parts) -> dict[str, int]:
    """How many samples every client has, and what is held out, as a refusal calls them."""
    counts = {f"client {number}": len(share) for number, share in enumerate(shares)}
    return counts | {"the validation data": len(parts.val), "the test data": len(parts.test)}


def refuse_few_samples(plan: Plan, task: Task, counts: Mapping[str, int]) -> None:
    """A guard, or what packs a message, must find the samples it needs in every set and in every batch."""
    refuse_too_few(plan, counts)
    refuse_small_batches(plan, task, counts)


def refuse_too_few(plan: Plan, counts: Mapping[str, int]) -> None:
    """A guard that needs several samples at a time must find them in every set; a client may not be empty then."""
    neediest = max(plan.guard.stages(), key=lambda part: part.least_batch)
    least = neediest.least_batch
    for whose, count in counts.items():
        if 0 < count < least or (count == 0 and whose.startswith("client") and least > 1):
            raise ValueError(
                f"{whose} has {count} samples, {plan.guard} needs {least} at a time: "
                f"{_more_samples(whose)}, or {neediest.instead}"
            )


def _more_samples(whose: str) -> str:
    """What gets a set more samples. What is held out is no client's."""
    if whose.startswith("client"):
        return "fewer clients, more data"
    return "another --val-share (0: none), more data" if "validation" in whose else "more data to test on"


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
        # Of samples that share rows nobody knows how many are left, but who tries it.
        doubtful = rows < least or (plan.guard.mixes_samples and plan.compression != NOTHING)
        if whose.startswith("client") and rows and doubtful and (why := _why_no_step(rows, plan, task)):
            said = (
                f"{whose} has {count} samples, so with --batch-size {plan.batch_size} and {plan.guard} a message has "
            )
            if why != NORMALISES:
                raise ValueError(f"{said}few rows: {why}")
            more = f"--batch-size {least}" if count >= least else "fewer clients, more data, or norm='group'"
            raise ValueError(f"{said}a single row, and the network normalises over rows: {more}")


def _why_no_step(rows: int, plan: Plan, task: Task) -> str | None:
    """Why so many samples make no step, as whoever cannot work on them puts it; tried with networks made for it."""
    server = build_server(plan.public(), task)
    client = build_client(replace(plan, private_seed=0), task, 0, server.handle)
    labels = torch.zeros(rows, *label_shape(plan, task), dtype=torch.int64)
    if why_unfit_labels(plan, task, labels):  # as is said of the labels that there are
        return None
    s = {name: torch.zeros(rows, dtype=torch.int64) for name in task.attributes}
    batch = Batch(made_up(task, rows, generator(0)), labels, s)
    try:
        with seeded(0):
            loss = sum(client.split.train().terms(batch, client.remote).values(), torch.zeros(()))
        if loss.requires_grad:
            loss.backward()
    except ValueError as error:
        # Batch normalisation: where one place is left of a row, nothing is beside it, at home or at the server.
        return NORMALISES if NORMALISES in str(error) else str(error)
    return None


def _smallest_batch(plan: Plan, count: int) -> int:
    """Rows of the smallest message about `count` samples."""
    index = in_batches(torch.arange(count), plan.batch_size, plan.least_batch)
    return min(len(piece) for batch in index for piece in micro_batches(plan, batch))

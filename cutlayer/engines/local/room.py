"""Which batch would fit where memory has run out: tried, not guessed."""

from dataclasses import replace

import torch

from ...core.batch import Batch, Task
from ...training.build import build_client, build_server
from ...training.labels import label_shape
from ...training.plan.plan import Plan
from ...training.step import learn


def largest_batch(plan: Plan, task: Task, device: torch.device) -> int | None:
    """The largest half, quarter, ... of the plan's batch with which a step of one client fits; None: not even the
    smallest that the plan could have."""
    size = plan.batch_size // 2
    while size >= plan.least_batch:
        if _fits(replace(plan, batch_size=size), task, device):
            return size
        size //= 2
    return None


def _fits(plan: Plan, task: Task, device: torch.device) -> bool:
    try:
        server = build_server(plan.public(), task, device)
        client = build_client(plan, task, 0, server.handle, device)
        rows, labels = plan.batch_size, label_shape(plan, task)
        attributes = {name: torch.arange(rows, device=device) % values for name, values in task.attributes.items()}
        y = torch.zeros(rows, *labels, dtype=torch.int64, device=device)
        batch = Batch(torch.rand(rows, *task.shape, device=device), y, attributes)
        for _ in range(2):  # the first step begins what optimizers keep
            learn(client, batch)
    except torch.OutOfMemoryError:
        return False
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def sentence(plan: Plan, task: Task, device: torch.device) -> str:
    """What to say to who asked for too large a batch."""
    fits = largest_batch(plan, task, device)
    if fits is None:
        return (
            f"the {device.type} has too little memory for this network at any batch size: a smaller one, or the CPU"
        )
    return f"the {device.type} has too little memory for --batch-size {plan.batch_size}; {fits} fits"

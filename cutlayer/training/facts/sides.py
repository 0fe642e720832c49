"""What each side of a cut has to store and to compute."""

from dataclasses import replace
from typing import Any

import torch

from ...core.batch import Batch, made_up
from ...core.message import Message
from ...core.remote import Remote
from ...core.seeds import generator
from ...nets.base import count_parameters, counting
from ..build import build_client, build_server
from ..plan.plan import Plan, Task
from ..plan.shapes import cut_shapes


def sides(plan: Plan, task: Task) -> dict[str, Any]:
    """Per side, guard included: parameters, and multiply-accumulates of predicting one sample."""
    plan = replace(plan, private_seed=0)  # any weights will do
    server = build_server(plan, task)
    client = build_client(plan, task, 0, server.handle)
    cut = cut_shapes(plan, task)
    # As many samples as the guard and what packs its answers need at once; the figures are those of one.
    packs = plan.guard.least_rows(cut.shared), plan.compression.answers.least_rows(cut.u)
    count = max(plan.guard.least_batch, plan.guard.fan_out, *packs)
    batch = Batch(made_up(task, count, generator(0)), torch.zeros(count, dtype=torch.long))
    sent: list[Message] = []

    def listen(message: Message) -> Message:
        sent.append(message)
        return server.handle(message)

    client.remote = Remote(0, listen)
    with torch.no_grad(), counting() as both:
        client.split.eval()(batch, client.remote)
    with torch.no_grad(), counting() as alone:
        if sent:
            server.body.eval()(sent[0]["z"], **sent[0].beside)
    return {
        "cut": list(cut.z),
        "sent": list(cut.sent),
        "client": {
            "parameters": count_parameters(client.split),
            "macs": (both.get_total_flops() - alone.get_total_flops()) // (2 * count),
        },
        "server": {"parameters": count_parameters(server.body), "macs": alone.get_total_flops() // (2 * count)},
    }

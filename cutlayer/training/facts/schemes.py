"""What a step costs under the schemes that split learning is compared with (Madill's thesis, 2025, Table 2.1).

A model on paper, per client and mini-batch: it knows the floats of z, the weights, and who computes what. What a run
of ours really sends is in its ledger; `cutlayer train` says where the two differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from ...core.batch import Task
from ...core.message import Message
from ...core.remote import Remote
from ...core.seeds import seeded
from ...wire import frames
from ..build import build_client
from ..plan.plan import Plan
from ..plan.shapes import cut_shapes
from ..protocols import Cut
from .compression import FLOAT
from .memory import far_away, made_up_batch
from .sides import sides


class Quantities(NamedTuple):
    """The letters of the table, for one plan."""

    devices: int  # N
    batch: int  # B
    steps: int  # k, between two merges
    cut: float  # q, bytes of z
    weights: float  # |W|, bytes of the whole network
    share: float  # β, the client's part of the weights
    work: float  # β of the computation: the table takes them for one
    rho: float  # what message 1 takes of q where it is compressed


class Cost(NamedTuple):
    """Per client and mini-batch: bytes, and work in steps of the whole network (t and T of the table)."""

    bytes: float
    client: float
    server: float


# Bytes of a round of k steps, and the server's work in it. Aggregation (U), distillation (D) and quantisation (Q) are
# left out: the table names them without a size.
SCHEMES: dict[str, tuple[Callable[[Quantities], float], Callable[[Quantities], float]]] = {
    "FL": (lambda it: 2 * it.weights, lambda it: 0.0),
    "SL": (lambda it: _features(it) + it.share * it.weights, lambda it: it.steps * (1 - it.work)),
    "SplitFed": (lambda it: _features(it) + 2 * it.share * it.weights, lambda it: it.steps * (1 - it.work)),
    "AdaSplit": (lambda it: _features(it), lambda it: 1 - it.work),
    "PSL": (lambda it: _features(it), lambda it: it.steps * (1 - it.work)),
    "FSL": (lambda it: _features(it) + 2 * (1 - it.share) * it.weights, lambda it: it.steps * (1 - it.work)),
    "SL + compression": (
        lambda it: (1 + it.rho) / 2 * _features(it) + it.share * it.weights,
        lambda it: it.steps * (1 - it.work),
    ),
}


def costs(it: Quantities) -> dict[str, Cost]:
    """Every scheme's cost of one mini-batch of one client: a round's, shared out over its k steps."""
    return {
        name: Cost(sent(it) / it.steps, 1.0 if name == "FL" else it.work, server(it) / it.steps)
        for name, (sent, server) in SCHEMES.items()
    }


def quantities(plan: Plan, task: Task, steps: int | None = None) -> Quantities:
    """Of a plan; ρ is by the bits of a message where its guard fixes them, else by what the guard sends."""
    if not plan.protocol.crosses:
        raise ValueError(
            f"the schemes are compared at a cut, and {plan.protocol} has none: take protocol=UShaped(); the row FL "
            "is what federated learning costs"
        )
    cut, own = cut_shapes(plan, task), sides(plan, task)
    client, server = own["client"], own["server"]
    q, parameters = FLOAT * prod(cut.z), client["parameters"] + server["parameters"]
    return Quantities(
        devices=plan.clients,
        batch=plan.batch_size,
        steps=steps or plan.local_steps or 1,
        cut=q,
        weights=FLOAT * parameters,
        share=client["parameters"] / parameters,
        work=client["macs"] / max(1, client["macs"] + server["macs"]),
        rho=_sent(plan, task, cut) / q,
    )


def _sent(plan: Plan, task: Task, cut: Cut) -> float:
    """Bytes a sample of z as the guard lets it out. Where they hang on what is in it, those of a made-up batch behind
    weights that have learnt nothing. Zeros that the network alone makes are no doing of the guard's."""
    bits = plan.guard.message_bits(cut.shared)
    if bits is not None:
        return bits / 8
    if not any(one.only_compresses or one.makes_zeros or one.mixes_samples for one in plan.guard.stages()):
        return float(FLOAT * prod(cut.sent))
    client, batch = (
        build_client(replace(plan, private_seed=0), task, 0, lambda message: message),
        made_up_batch(plan, task),
    )
    answer, sent = far_away(batch, cut.u, client.split.guard.fan_out), list[Message]()

    def listen(message: Message) -> Message:
        sent.append(message)
        return answer(message)

    with seeded(0):
        client.split.train().terms(batch, Remote(0, listen))
    z = Message(sent[0].kind, 0, 0, {"z": sent[0]["z"]}, sent[0].packed)
    return frames.size(z) / len(batch)


def table(plan: Plan, task: Task, steps: Sequence[int]) -> dict[str, Any]:
    """The letters of a plan, and the cost of every scheme at each number of steps between merges."""
    it = quantities(plan, task)
    return {
        "letters": it._asdict(),
        "schemes": {
            name: [{"steps": k, **costs(it._replace(steps=k))[name]._asdict()} for k in steps] for name in SCHEMES
        },
    }


def _features(it: Quantities) -> float:
    """z up and its gradient down, in every step of a round."""
    return 2 * it.steps * it.batch * it.cut

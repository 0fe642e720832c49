"""What an audit says of a run beside its attacks: accuracy, bytes, cost, privacy."""

from statistics import mean
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.batch import NO_LABEL
from ..core.seeds import derive, generator
from ..data.base import Loaded, Parts, Samples, overlap, parts
from ..data.rows import pieces
from ..engines.client_report import by_client
from ..engines.local.run import LocalRun
from ..guards import Guard
from ..metrics.images import CHUNK, CONSTANT, spread_across
from ..metrics.scatter import scatter_ratio
from ..training.batches import as_batch, shares_of, task_of
from ..training.evaluation import figures
from ..training.facts.compression import rates
from ..training.facts.memory import client_memory
from ..training.facts.privacy import privacy
from ..training.facts.sides import sides
from ..training.plan.plan import Plan
from ..training.plan.roles import SendOnce
from ..training.plan.shapes import cut_shapes
from ..wire.ledger import DOWN, UP
from .rows import RunFacts, shown
from .victim import Victim

MOST_COMPARED = 4096  # private images of a set on disk: a copy of one in a thousand is missed once in sixty times


def shared_out(plan: Plan, loaded: Loaded, seed: int) -> Parts:
    return parts(loaded, aux=plan.aux_samples, val=plan.val_share, seed=seed)


def refuse_overlap(data: Parts) -> None:
    """Images that are both private and the attacker's. (Records of a table may be equal and not the same.)

    Of private images that are decoded as they are asked for a fixed draw is compared; those that are scored are
    compared once they are known (`refuse_scored_copies`).
    """
    private = data.private
    if private.on_disk and len(private) > MOST_COMPARED:
        draw = torch.randperm(len(private), generator=generator(derive(0, "overlap")))
        private = private[draw[:MOST_COMPARED].sort().values]
    _refuse_copies(private, data.aux)


def refuse_scored_copies(data: Parts, scored: Samples) -> None:
    """Images that are scored and the attacker's: of a set on disk they may have escaped `refuse_overlap`."""
    if data.private.on_disk:
        _refuse_copies(scored, data.aux)


def left_uncompared(data: Parts) -> dict[str, str]:
    """What `refuse_overlap` did not look at, and why, as a report says it."""
    if not data.private.on_disk or len(data.private) <= MOST_COMPARED:
        return {}
    why = (
        "they are decoded as they are asked for, so they were not compared with the attacker's; "
        f"{MOST_COMPARED:,} others and all that are scored were"
    )
    return {f"{len(data.private) - MOST_COMPARED:,} private images": why}


def _refuse_copies(private: Samples, aux: Samples) -> None:
    if aux.x.dim() == 2:
        return
    if common := overlap(private, aux):
        raise ValueError(
            f"{common} of the attacker's auxiliary images are also private: the score would be memory. "
            "Drop the copies first (cutlayer.data.base.distinct, or UTKFace(distinct=True))"
        )


def refuse_alike(data: Parts) -> None:
    """Where all images are one, every guess rebuilds them: no figure would tell a guard from none."""
    images = data.private.images(torch.arange(min(CHUNK, len(data.private))))
    what = task_of(data.private, 0).kind
    spread = spread_across(images) if what == "images" else float(images.double().std(0, correction=0).mean())
    if len(data.private) < 2 or spread < CONSTANT:
        raise ValueError(
            f"the {len(data.private)} private {what} are all alike, so there is nothing that an attacker could tell "
            f"apart: audit data whose {what} differ"
        )


def refuse_single(plan: Plan, data: Parts) -> None:
    """The first client's samples are scored: of a single one no spread is known, and so no attack that succeeded."""
    count = len(shares_of(plan, data.private)[0])
    if count < 2:
        what = task_of(data.private, 0).kind
        raise ValueError(
            f"attacks are judged on the first client's {what}, and with {plan.partition!r} it has {count} of "
            f"{len(data.private)}: take fewer clients, more data or another partition"
        )


def commonest(y: Tensor) -> float:
    """Accuracy of always naming the commonest label."""
    counts = torch.zeros(0, dtype=torch.int64)
    for some in pieces(y):
        found = some[some != NO_LABEL].bincount(minlength=len(counts)).cpu()
        counts = pad(counts, [0, len(found) - len(counts)]) + found
    return float(counts.max() / counts.sum())


def epsilon_asked(guard: Guard) -> float | None:
    """The ε of what leaves that was typed, the smallest of a chain's."""
    typed = (getattr(part, "epsilon", None) for part in guard.stages() if not part.client_only)
    return min((epsilon for epsilon in typed if epsilon is not None), default=None)


def sent_once(plan: Plan) -> bool:
    """Whether a single message of each sample leaves in the whole training, so that there is nothing to link."""
    return isinstance(plan.roles, SendOnce) and plan.roles.messages == 1


def run_facts(run: LocalRun, victim: Victim) -> RunFacts:
    """What a guard costs and keeps, whoever attacks it."""
    accuracies = run.evaluate(run.parts.test)
    batch = as_batch(run.samples[0], torch.arange(min(run.plan.batch_size, len(run.samples[0]))))
    memory = client_memory(victim.network, batch, cut_shapes(run.plan, run.task).u)
    found: RunFacts = {
        "guard": shown(run.plan.guard),
        "fitted": run.plan.guard.post_hoc,
        "accuracy": mean(accuracies),
        "accuracy_spread": max(accuracies) - min(accuracies),
        "accuracy_chance": commonest(run.parts.test.y),
        "labels_travel": not run.plan.protocol.labels_stay_home,
        "draws_anew": run.plan.guard.draws_anew and not sent_once(run.plan),
        "epsilon_asked": epsilon_asked(run.plan.guard),
        "bytes_up": run.ledger.per_sample(UP),
        "bytes_down": run.ledger.per_sample(DOWN),
        "bytes_weights": run.ledger.weights_per_sample(),
        "sides": sides(run.plan, run.task),
        "privacy": privacy(run.plan, run.task, fitted=run.plan.guard.post_hoc),
        "train_seconds": round(run.progress.seconds, 2),
        "client_memory": memory,
        "within_over_total": scatter_ratio(victim.seen, victim.y) if victim.y.dim() == 1 else None,
        "rates": rates(run.plan, run.task, run.ledger),
        "ledger": run.ledger.as_dict(),
    }
    found.update(cast(RunFacts, figures(client.scored for client in run.clients)))
    if run.plan.clients > 1:
        found["fairness"] = by_client(run).get("fairness")
    return found

"""What an attacker is told: no more than the server really knows, before and after the training."""

import copy
from dataclasses import replace

import torch

from ..attacks import Attack, Knowledge, KnownGuard
from ..attacks.base import REQUIRED, Published
from ..core.batch import Task
from ..core.seeds import derive
from ..data.base import Parts
from ..training.build import build_client
from ..training.plan.plan import Plan
from ..training.plan.shapes import cut_shapes
from .passes import Lazily, order_of, passes_of
from .turns import turns_of, why_no_turns
from .victim import Victim, WhiteBox, _apart, _for_rows_apart, _unguarded


def why_untold(attack: Attack, data: Parts, images: int) -> str | None:
    """What an attack needs and this audit cannot give, as one sentence; None: nothing. Known before any training."""
    gives = {
        "aux": len(data.aux) > 0,
        "aux_labels": len(data.aux) > 0,
        "aux_attributes": bool(data.aux.s),
        "private": images < len(data.private),
    }
    missing = [REQUIRED[name] for name in attack.needs if not gives.get(name, True)]
    if missing:
        return f"{attack} needs {' and '.join(missing)}, and there are none to give"
    if attack.reads_classes and data.private.y.dim() > 1:
        what = "place" if data.private.vocabulary else "pixel"
        return f"{attack} goes by the class of a sample, and here every {what} has its own: leave it out"
    wanted = getattr(attack, "attribute", None)
    if "aux_attributes" in attack.needs and wanted not in data.aux.s:
        return f"{attack} needs {wanted!r} of the auxiliary images; they have {', '.join(sorted(data.aux.s))}"
    return None


def why_pointless(attack: Attack, plan: Plan, task: Task, data: Parts, images: int) -> str | None:
    """Why an attack cannot be tried in this audit: there is nothing to find, or something it needs is not there."""
    if "published" in attack.needs and plan.start is None:
        return f"{attack} needs {REQUIRED['published']}, and this one began with weights of its own drawing"
    if (why := attack.why_not(task, plan.protocol.labels_stay_home) or why_untold(attack, data, images)) is not None:
        return why
    why = why_no_turns(plan) if "turns" in attack.needs else None
    return None if why is None else f"{attack} reads the gradient of a batch, and {why}"


def before_training(plan: Plan, task: Task, data: Parts, device: torch.device | str, client: int = 0) -> Knowledge:
    """All that an attacker can be told before a client sends anything: for those that take part in the training. The
    key is that of the `client` who will be its victim."""
    cut = cut_shapes(plan, task)
    public, seed = plan.guard.public_part(), derive(plan.seed, "guard")
    undo = public.undo(cut.shared, seed)
    secret = plan.private_seed
    true_key = None if secret is None else derive(derive(secret, "client", client), "guard")
    return Knowledge(
        task=task,
        aux=data.aux.images().to(device),
        aux_labels=data.aux.y[:].to(device),
        aux_attributes={name: values.to(device) for name, values in data.aux.s.items()} or None,
        net=plan.net,
        guard=KnownGuard(public, cut.shared, seed, task, true_key),
        undo=undo.to(device) if undo is not None else None,
    )


def after_training(victim: Victim, data: Parts) -> Knowledge:
    """Everything any attacker could be told about this victim; an attack is handed the part that it names."""
    run = victim.run
    before = before_training(run.plan, run.task, data, victim.truth.device, victim.network.number)
    return replace(
        before,
        observed=victim.observed,
        history=victim.history and [_apart(message, victim.network.split.guard) for message in victim.history],
        bodies=victim.bodies and [_for_rows_apart(body) for body in victim.bodies],
        passes=Lazily(lambda: [one.told for one in passes_of(victim)]),
        order=Lazily(lambda: order_of(victim)),
        turns=Lazily(lambda: turns_of(victim)),
        body=_for_rows_apart(run.server.body),
        guard=before.guard and replace(before.guard, rests=victim.still and run.plan.guard.rests_in_service),
        encode=victim.box,
        published=_published(victim) if run.plan.start is not None else None,
        tail=copy.deepcopy(victim.network.split.tail).requires_grad_(False),
        head=WhiteBox(_unguarded(victim.network.split), run.plan.batch_size, victim.still),
    )


def _published(victim: Victim) -> Published:
    """A client as anybody can build one from the file: a key of the guard, and a tail that is not in the file, are
    others than the victim's."""
    run = victim.run
    plan = replace(run.plan, private_seed=derive(run.plan.private_seed or 0, "who has the file"))
    began = build_client(plan, run.task, victim.network.number, lambda message: message, run.device).split
    return Published(WhiteBox(began, run.plan.batch_size, victim.still), began.tail.requires_grad_(False))

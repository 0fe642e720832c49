"""What an audit can do with a plan, its data, its guards and its attacks, told before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ..attacks import Attack
from ..core.batch import Task
from ..core.guard import Shape
from ..core.outside import is_outside
from ..data.base import Loaded, Parts
from ..detectors import ClientContext
from ..guards import Guard, NoGuard
from ..training.build import build_client, build_server
from ..training.enough import refuse_few_samples
from ..training.labels import why_unfit_labels
from ..training.laws import hold, refuse_broken
from ..training.plan.plan import Plan
from .check.attacks import says_what_it_knows
from .knowledge import why_pointless
from .tables import refuse_unfit

SMALLEST = 11  # pixels: one window of SSIM
AUX_SHARE, MOST_AUX = 0.45, 10_000  # of the training data, where the plan sets nothing aside


def forms(attacks: Sequence[Attack], plan: Plan, guard: Guard, shape: Shape) -> list[Attack]:
    """Each attack as it meets a guard; where clients watch, the active ones in disguise as well."""
    watched = any(one.suspects for one in plan.client_detectors) and not guard.post_hoc
    found: list[Attack] = []
    for attack in attacks:
        if guard == NoGuard():
            found.append(attack.base())  # first: the control of all its forms
        for one in (attack, *(attack.evasions() if watched else ())):
            found += one.against(guard, shape)
    return list(dict.fromkeys(found))


def why_unfit(
    plan: Plan, task: Task, guard: Guard, y: Tensor | None = None, counts: Sequence[Mapping[str, int]] = ()
) -> str | None:
    """Why a guard cannot work with this plan: both sides are built, so nothing is left to fail after an hour.

    `counts`: under each seed, how many samples every client has, and what is held out."""
    try:
        plan = replace(plan.with_guard(guard), private_seed=0)
        server = build_server(plan.public(), task)
        build_client(plan, task, 0, server.handle)
        for each in counts:
            refuse_few_samples(plan, task, each)
        for one in plan.client_detectors:
            one.refuse_unfit(
                ClientContext(task, plan.batch_size, 0, lambda steps: iter(()), apart=not guard.mixes_samples)
            )
        return why_unfit_labels(plan, task, y) if y is not None else None
    except ValueError as error:
        return str(error)


def of_itself(attack: Attack, why: str) -> str:
    """Why an attack that nobody typed was left out: it is told of as `it`, and is left out already."""
    return why.replace(f"{attack} ", "it ", 1).replace(": leave it out, ", "; ")


def checked(plan: Plan, loaded: Loaded) -> Plan:
    """The plan with auxiliary data set aside; data that cannot be audited is refused before anything is trained."""
    if not plan.protocol.crosses:
        raise ValueError(f"nothing crosses in {plan.protocol}, so there is no cut to audit: take UShaped")
    if not plan.aux_samples:
        plan = replace(plan, aux_samples=min(MOST_AUX, int(AUX_SHARE * len(loaded.train))))
    shape = tuple(loaded.train.x.shape[1:])
    if len(shape) != 3:
        refuse_unfit(loaded, plan.aux_samples)
    elif min(shape[1:]) < SMALLEST:
        raise ValueError(f"SSIM needs images of at least {SMALLEST} pixels a side; these are {shape[1:]}")
    return plan


def refuse_attacks(attacks: Sequence[Attack], plan: Plan, data: Parts, task: Task, images: int) -> None:
    """What an attack lacks is said now, and not after the first hour of training."""
    for attack in attacks:
        refuse_broken([attack], (), task)
        if is_outside(type(attack)):
            hold(attack, (says_what_it_knows,))
        if (reason := why_pointless(attack, plan, task, data, images)) is not None:
            raise ValueError(reason)

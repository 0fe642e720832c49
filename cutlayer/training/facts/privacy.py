"""The privacy ledger: what may be claimed of a whole run, what may not, and why.

Two things can carry an ε. *Messages*: noise behind a clip bound, released once an epoch for every record. *Weights*:
DP-SGD on the client. Neighbours are data sets of one client that differ in one record (replace-one). Every condition
below is there because the proof breaks without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...core.batch import Task, made_up
from ...core.features import features
from ...core.guard import Shape
from ...core.seeds import seeded
from ...core.split import Split
from ...guards import DPSGD, Gaussian, Guard, Laplace, Noise
from ...guards.base import Bound, Release, behind, standing
from ...guards.parts.calibration import gaussian_epsilon
from ..build import build_client, build_server
from ..plan.plan import Plan
from ..plan.roles import Phase
from ..plan.shapes import cut_shapes
from ..protocols import Cut

DELTA = 1e-5
NO_ACCOUNTANT = "adding up releases needs dp-accounting: pip install 'cutlayer[dp]'"
FINEST, CELLS = 1e-4, 10_000  # of the accountant's grid: its width, unless that would take more cells than this


Inputs = Callable[[], tuple[Tensor, dict[str, Tensor]]]  # samples, and what is beside them


class Spent(NamedTuple):
    """So many releases of one kind."""

    release: Release
    times: int


class _Parties(NamedTuple):
    split: Split
    body: nn.Module


def priced(plan: Plan) -> bool:
    """Whether anything in a plan has a price: else nothing need be built to say so."""
    bound = Bound()
    for part in plan.guard.stages():
        _, bound = behind(part, bound)
    return bound.release is not None or plan.guard.releases_weights() is not None


def privacy(
    plan: Plan, task: Task, *, delta: float | None = None, fitted: bool = False, epochs: int | None = None
) -> dict[str, Any]:
    """The ledger of a run as plain data; `sentence` puts it into words.

    `epochs`: in how many the records were released; None: in all that the plan has.
    `delta`: that of the guard where it names one, else 1e-5. `fitted`: the frozen parts come from an earlier run on
    the same records (an audit does that for guards that are fitted to a finished network).
    """
    epochs = plan.epochs if epochs is None else epochs
    cut = cut_shapes(plan, task)
    claims, bound, deltas = _along(plan.guard, cut.shared)
    delta = next(iter(deltas), DELTA) if delta is None else delta
    if not 0 < delta < 1:
        raise ValueError(f"delta is a probability well below 1/samples, e.g. 1e-5; got {delta!r}")
    parties = _build(plan, task)
    weights, why_no_weights = _weights(plan, task, parties, delta, epochs)
    if cut.beside:
        bound = Bound(why=f"{_names(cut)} leaves beside what is noised, as it is: take a network that sends none")
    messages, why_no_epsilon = _messages(plan, task, parties, bound, weights, delta, epochs, fitted)
    return {
        "claims": claims,
        "epsilon": messages,
        "why_no_epsilon": why_no_epsilon,
        "weights": weights,
        "why_no_weights": why_no_weights,
        "inference": _inference(plan, bound, delta, epochs),
        "bits": told_bits(plan, cut.shared, epochs),
        "beside": _told_beside(cut),
        "not_covered": _not_covered(plan, messages, weights),
        "assumes": _assumes(plan, messages, weights),
    }


def sentence(data: dict[str, Any]) -> str:
    """The ledger for a reader, in a few sentences."""
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in lines(data))


def lines(data: dict[str, Any]) -> list[str]:
    """The same, one line a statement."""
    said = [
        f"{entry['guard']}: {entry['claim']}"
        for entry in data["claims"]
        if entry.get("claimed", not entry["claim"].startswith(("none", "nothing")))  # it is not in older ledgers
    ]
    out = [f"may be claimed: {'; '.join(said) or 'nothing'}"]
    if data.get("beside"):
        out.append(data["beside"])
    if (bits := data.get("bits")) is not None:
        messages = f"{bits['messages']} message{'' if bits['messages'] == 1 else 's'}"
        out.append(f"messages tell at most {bits['sample']:,} bits of a sample: {messages} of {bits['message']} bits")
    out += _in_words("what leaves", "message, given the head", data["epsilon"], data["why_no_epsilon"])
    if data["weights"] or data["why_no_weights"]:
        out += _in_words("the client's weights", "step, given all before it", data["weights"], data["why_no_weights"])
    if data["inference"]:
        out.append(f"each prediction costs ε = {data['inference']['release']:.2f} for what is predicted")
    if data["not_covered"] and (data["epsilon"] or data["weights"]):
        out.append(f"not covered: {'; '.join(data['not_covered'])}")
    return out


def _in_words(what: str, single: str, price: dict[str, Any] | None, why: str | None) -> list[str]:
    if price is None:
        return [f"no ε for {what}: {why}"]
    at = "" if not price["delta"] else f", δ = {price['delta']:g}"
    if price["total"] is None:
        return [f"ε = {price['release']:.2f}{at} for one {single}; none for {what} in all: {why}"]
    if price["weights_included"]:
        what, each = f"{what} and the client's weights", f"the messages of an epoch alone: {price['release']:.2f}"
    else:
        each = f"{price['release']:.2f} an epoch"
    epochs = f"{price['epochs']} epoch{'' if price['epochs'] == 1 else 's'}"
    return [f"{what}, over {epochs}: ε = {price['total']:.2f}{at} for one record replaced ({each})"]


def told_bits(plan: Plan, shape: Shape, epochs: int) -> dict[str, int] | None:
    """The most bits that the messages of a training tell of a sample, where its guard fixes them. A message that was
    sent before tells nothing new; what else travels (du, labels, weights) is not counted."""
    everyone = plan.guarded_clients is None or plan.guarded_clients == plan.clients
    bits = plan.guard.message_bits(shape) if plan.protocol.crosses and everyone else None
    if bits is None:
        return None
    messages = sum(plan.roles.phase(epoch) in (Phase.SPLIT, Phase.SEND) for epoch in range(epochs))
    return {"message": bits, "messages": messages, "sample": bits * messages}


# ------------------------------------------------------------------ the accountant
def epsilon_of(spent: Sequence[Spent], delta: float) -> float | None:
    """ε of all releases together, by privacy loss distributions (an upper bound); None without dp-accounting."""
    spent = [entry for entry in spent if entry.times]
    if not spent:
        return 0.0
    try:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        return None
    kinds = {"gaussian": dp.GaussianDpEvent, "laplace": dp.LaplaceDpEvent}
    events = [dp.SelfComposedDpEvent(kinds[one.noise](one.multiplier), times) for one, times in spent]
    accountant = PLDAccountant(value_discretization_interval=_cell(_roughly(spent, delta)))
    return float(accountant.compose(dp.ComposedDpEvent(events)).get_epsilon(delta))


def rounding(epsilon: float, releases: int) -> float:
    """By how much the accountant may say more than an ε that so many releases were made for: a cell a release."""
    return releases * _cell(epsilon)


def _cell(epsilon: float) -> float:
    """The width of the accountant's grid. At an ε of hundreds nobody misses the digits."""
    return max(FINEST, epsilon / CELLS)


def epsilon_of_one(release: Release, delta: float) -> float:
    """ε of a single release, in closed form."""
    return 1 / release.multiplier if release.noise == "laplace" else gaussian_epsilon(release.multiplier, delta)


def _roughly(spent: Sequence[Spent], delta: float) -> float:
    """Gaussians add up exactly, μ² = Σ 1/multiplier²; Laplace noise at most as pure ε."""
    square = sum(times / one.multiplier**2 for one, times in spent if one.noise == "gaussian")
    pure = sum(times / one.multiplier for one, times in spent if one.noise == "laplace")
    return pure + (gaussian_epsilon(1 / sqrt(square), delta) if square else 0.0)


# ------------------------------------------------------------------ what leaves
def _along(guard: Guard, shape: Shape) -> tuple[list[dict[str, Any]], Bound, list[float]]:
    """(what each part may claim of what leaves, what holds behind the last, the δ that was asked for)"""
    parts, bound = guard.stages(), Bound()
    for part in parts:
        _, bound = behind(part, bound)
    claims = [
        {"guard": repr(part), "claim": one.sentence(), "claimed": bool(one.claims)}
        for part, one in zip(parts, standing(guard, shape), strict=True)
    ]
    return claims, bound, [part.delta for part in parts if isinstance(part, Gaussian | DPSGD)]


def _messages(
    plan: Plan,
    task: Task,
    parties: _Parties,
    bound: Bound,
    weights: dict[str, Any] | None,
    delta: float,
    epochs: int,
    fitted: bool,
) -> tuple[dict[str, Any] | None, str | None]:
    """Message 1 over all epochs. A record is in one batch an epoch, so it costs one release an epoch."""
    if bound.release is None:
        return None, _why_no_release(plan.guard, bound)
    split = parties.split
    # The rows of a batch must follow from a sample each, or the clip bounds only a part of what one sample moves.
    inputs = _inputs(task, cut_shapes(plan, task), None)
    if why := _mixes("the head", split.head, inputs) or _mixes("the guard", split.guard, None):
        return None, why
    spent = [Spent(bound.release, epochs)]
    if fitted:
        return _price(spent, delta, None), (
            "the frozen head was learnt from the same records in an earlier run, without noise, and every message "
            "shows it"
        )
    if _learns(split.head) or _learns(split.guard):
        # Later messages then show a record through the weights it changed, for all rows. DP-SGD has a price for that.
        which = "head" if _learns(split.head) else "guard"
        if weights is None or weights["total"] is None:
            return _price(spent, delta, None), (
                f"the {which} learns from the records, so that later messages tell of them through its weights: "
                "freeze the head (and take a guard without weights), or learn with DPSGD and freeze the body"
            )
        spent.append(Spent(Release("gaussian", weights["multiplier"]), epochs))
    total = epsilon_of(spent, delta)
    return _price(spent, delta, total), NO_ACCOUNTANT if total is None else None


def _why_no_release(guard: Guard, bound: Bound) -> str:
    parts = guard.stages()
    if any(isinstance(part, Gaussian | Laplace) for part in parts):
        return bound.why
    if any(isinstance(part, Noise) for part in parts):
        return "Noise is a baseline without a claim: take Chain(Clip(norm=...), Gaussian(...))"
    if own := next((part for part in parts if part.draws_anew), None):
        return (
            f"{own} sends something else of a sample each time, and no noise of a known scale: take "
            "Chain(Clip(norm=...), Gaussian(...))"
        )
    return "no noise is added to what leaves"


def _price(spent: list[Spent], delta: float, total: float | None) -> dict[str, Any]:
    release, epochs = spent[0]
    return {
        "noise": release.noise,
        "multiplier": release.multiplier,
        # A single release of Laplace noise needs no δ; many of them together cost less with one.
        "delta": 0.0 if release.noise == "laplace" and total is None else delta,
        "release": epsilon_of_one(release, delta),
        "epochs": epochs,
        "total": total,
        "weights_included": len(spent) > 1,
    }


def _inference(plan: Plan, bound: Bound, delta: float, epochs: int) -> dict[str, Any] | None:
    """What a prediction costs the record that is predicted. It taught the client nothing, and in evaluation mode no
    layer mixes rows, so neither the head's training nor BatchNorm stands in the way."""
    if bound.release is None or _rests(plan.guard):
        return None
    everyone = plan.guarded_clients is None or plan.guarded_clients == plan.clients
    networks = 1 if plan.shared_client_network and plan.guarded_clients is None else plan.clients
    times = epochs * networks if plan.val_share else 0
    return {
        "release": epsilon_of_one(bound.release, delta),
        "validation_releases": times,
        "validation_total": epsilon_of([Spent(bound.release, times)], delta) if everyone else None,
    }


def _rests(guard: Guard) -> bool:
    """Whether the noise, or what bounds what it is added to, is left out in service; what is behind it may rest."""
    rests, bound, found = False, Bound(), False
    for part in guard.stages():
        before, (_, bound) = bound.release, behind(part, bound)
        rests |= part.rests_in_service
        if bound.release != before:
            found = rests
    return found


# ------------------------------------------------------------------ the client's weights
def _weights(
    plan: Plan, task: Task, parties: _Parties, delta: float, epochs: int
) -> tuple[dict[str, Any] | None, str | None]:
    """DP-SGD over all epochs. Replacing a record moves the sum of clipped gradients by at most 2·clip, once an epoch;
    batches are shuffled, not drawn at random, so nothing is gained by sampling."""
    parts = plan.guard.stages()
    own = next((part for part in parts if part.releases_weights() is not None), None)
    release = plan.guard.releases_weights()
    if own is None or release is None:
        return None, None
    if not release.multiplier:
        return None, f"{own} adds no noise"
    if other := next((part for part in parts if not part.acts_alone), None):
        return None, f"{other} may let one sample change the gradients of others, which no clip bounds: leave it out"
    split, cut = parties.split, cut_shapes(plan, task)
    for name, part, shape in (
        ("the head", split.head, None),
        ("the body", parties.body, cut.sent),
        ("the tail", split.tail, cut.u),
    ):
        if why := _mixes(name, part, _inputs(task, cut, shape)):
            return None, why
    spent = [Spent(release, epochs)]
    if _learns(parties.body):
        return _price(spent, delta, None), (
            "the body learns from the same records without noise, and later gradients of all samples come through "
            "it: freeze the body (and take a guard whose lift has no weights)"
        )
    total = epsilon_of(spent, delta)
    return _price(spent, delta, total), NO_ACCOUNTANT if total is None else None


# ------------------------------------------------------------------ what the parties are made of
def _build(plan: Plan, task: Task) -> _Parties:
    # Any weights will do; the conditions are about what is there, not about numbers.
    plain = replace(plan, private_seed=0, start=None)
    return _Parties(
        build_client(plain, task, 0, lambda message: message).split, build_server(plain.public(), task).body
    )


def _learns(part: nn.Module) -> bool:
    return any(p.requires_grad for p in part.parameters())


def _inputs(task: Task, cut: Cut, shape: Shape | None) -> Inputs:
    """Three made-up samples for the head, or, of this shape and with what is beside them, for a part behind it."""

    def made() -> tuple[Tensor, dict[str, Tensor]]:
        if shape is None:
            return made_up(task, 3), {}
        return torch.rand(3, *shape), {
            name: torch.ones(3, *form.shape, dtype=form.dtype) for name, form in cut.beside.items()
        }

    return made


def _mixes(name: str, part: nn.Module, inputs: Inputs | None) -> str | None:
    """Why replacing one sample moves the rows of others, frozen or not; None: it does not."""
    for inner in part.modules():
        if isinstance(inner, _BatchNorm):
            return (
                f"{name} has {type(inner).__name__}, which normalises by the batch, so one sample moves every row: "
                "take the network with norm='group'"
            )
    if inputs is not None and not _keeps_rows_apart(part, inputs):
        return f"{name} lets one sample move the rows of others: take layers that treat every sample alone"
    return None


@torch.no_grad()
def _keeps_rows_apart(part: nn.Module, inputs: Inputs) -> bool:
    """Replace the second of two samples and look at the first: a network of one's own may mix in its own way."""
    answers = []
    for second in (1, 2):
        with seeded(0):
            samples, beside = inputs()
            part.train()
            pair = {name: tensor[[0, second]] for name, tensor in beside.items()}
            answers.append(features(part(samples[[0, second]], **pair)).z[0])
    one, other = answers
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ the small print
def _names(cut: Cut) -> str:
    return " and ".join(cut.beside)


def _told_beside(cut: Cut) -> str | None:
    """What leaves unguarded whatever the guard is."""
    if not cut.beside:
        return None
    lengths = ", so how long each text is" if "mask" in cut.beside else ""
    return f"no guard touches what leaves beside z: {_names(cut)} of every sample{lengths}"


def _not_covered(plan: Plan, messages: dict[str, Any] | None, weights: dict[str, Any] | None) -> list[str]:
    open_ends = []
    if weights is not None and messages is None:
        open_ends.append("everything that leaves: weights alone are noised, and the server sees more than weights")
    if plan.protocol.labels_stay_home:
        open_ends.append("message 3 (dL/du), which follows from labels and data and carries no noise")
    else:
        open_ends.append("the labels, which travel in the clear")
    if plan.clients > 1 and plan.shared_client_network and (weights is None or weights["total"] is None):
        open_ends.append("the weights that are handed on from client to client")
    if plan.guarded_clients is not None and plan.guarded_clients < plan.clients:
        open_ends.append(f"the {plan.clients - plan.guarded_clients} client(s) that send without the guard")
    if messages is not None and _rests(plan.guard):
        open_ends.append("predictions, of validation data too: in service the noise rests")
    if plan.patience:
        open_ends.append("when training stops and which epoch is kept, which the validation data decide")
    return open_ends


def _assumes(plan: Plan, messages: dict[str, Any] | None, weights: dict[str, Any] | None) -> list[str]:
    if messages is None and weights is None:
        return []
    assumed = ["one record of one client is replaced; how many there are, and who holds which, is no secret"]
    if plan.start is not None:
        assumed.append(f"the weights in {plan.start.path} were not learnt from these records")
    if weights is not None:
        assumed.append("an honest server: a false answer can carry one sample into the gradients of others")
    return assumed

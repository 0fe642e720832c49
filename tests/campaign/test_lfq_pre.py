"""Why LFQ's `pre` harms a network that has learnt nothing: one thing changed at a time, three seeds each.

The plan is recipes/lfq.py:digits_lfq_seldom with a hundred steps of autoencoding on the first batch. Accuracies go to
docs/evidence/lfq-pre.json, beside what the code tells behind these steps, over 256 images of all digits: how far its
bits differ between samples at one position ("apart") and over all positions ("used"), of 1, and the squared error of
what the decoder makes of them over the variance of the activations ("error").
"""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from cutlayer.core.message import Kind
from cutlayer.core.split import Split
from cutlayer.data.base import parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import lfq
from cutlayer.training import SGD

pytestmark = pytest.mark.campaign
ROOT = Path(__file__).parents[2]
SEEDS, STEPS, LATER = (0, 1, 2), 100, 130  # messages after which silent units are counted
Loss = Callable[[], Tensor]


def summed(terms: dict[str, Tensor]) -> Tensor:
    return reduce(torch.add, terms.values())


def as_it_is(codes, z: Tensor) -> Loss:
    return lambda: summed(codes._penalties(z, codes._codes(z)))


def reconstruction_alone(codes, z: Tensor) -> Loss:
    return lambda: mse_loss(codes.decoder(codes._codes(z).seen), z)


def reconstruction_over_variance(codes, z: Tensor) -> Loss:
    """An untrained head's activations hardly differ: in their own units the error is no small term any more."""
    variance = z.var(0).mean()

    def loss() -> Tensor:
        terms = codes._penalties(z, codes._codes(z))
        return summed(terms | {"LFQ reconstruction": terms["LFQ reconstruction"] / variance})

    return loss


def use_at_each_position(codes, z: Tensor) -> Loss:
    """The entropy of a bit's use taken at each position: a code of where it is no longer passes for one in use."""

    def loss() -> Tensor:
        found = codes._codes(z)
        p = (4 * found.size * found.soft).sigmoid()
        entropy = lfq._entropy(p).mean() - codes.spec.gamma * lfq._entropy(p.mean(0)).mean()
        return summed(codes._penalties(z, found) | {"LFQ entropy": codes.spec.entropy * entropy})

    return loss


def back_to_the_start(part: str):
    def reset(codes, before: dict[str, Tensor]) -> None:
        codes.load_state_dict({name: t for name, t in before.items() if name.startswith(part)}, strict=False)

    return reset


def near_the_threshold(codes, before: dict[str, Tensor]) -> None:
    """As near to 0 as an untrained encoder's outputs are, with the same signs: codes flip as easily."""
    with torch.no_grad():
        for parameter in codes.encoder[-1].parameters():
            parameter.mul_(0.18)


def nothing(codes, before: dict[str, Tensor]) -> None:
    pass


# What the steps minimise, on whose images, and what is done behind them.
VARIANTS = {
    "pre": (as_it_is, False, nothing),
    "reconstruction alone": (reconstruction_alone, False, nothing),
    "reconstruction over the variance": (reconstruction_over_variance, False, nothing),
    "use at each position": (use_at_each_position, False, nothing),
    "on images of all digits": (as_it_is, True, nothing),
    "then a new decoder": (as_it_is, False, back_to_the_start("decoder")),
    "then a new encoder": (as_it_is, False, back_to_the_start("encoder")),
    "then near the threshold": (as_it_is, False, near_the_threshold),
    "pre, server at a tenth of the rate": (as_it_is, False, nothing),
}


def measured(variant: str, seed: int, epochs: int = 12) -> dict:
    plan = runpy.run_path(str(ROOT / "recipes" / "lfq.py"))["digits_lfq_seldom"]()
    slow = variant.endswith("tenth of the rate")
    plan = replace(
        plan,
        guard=replace(plan.guard, pre=STEPS if variant in VARIANTS else 0),
        server_optimizer=SGD(lr=0.002, weight_decay=1e-4) if slow else plan.server_optimizer,
        seed=seed,
        private_seed=seed + 77,
        epochs=epochs,
    )
    silent, seen, told, own = [], {}, {}, {}

    def listen(message, handle):
        answer = handle(message)
        if message.kind is Kind.LOSS:
            seen["z"] = message["z"]
        elif message.kind is Kind.BACKWARD and len(silent) < LATER:
            with torch.no_grad():
                hidden = run.server.body.body(run.server.body.lift(seen["z"]))
            silent.append(float((hidden == 0).all(0).float().mean()))
        return answer

    def guarded(split, batch):
        own["split"] = split
        return usual(split, batch)

    def autoencode(codes, z: Tensor) -> None:
        every = own["split"].head(run.parts.val.images(torch.arange(256))).detach()
        loss, mixed, behind = VARIANTS[variant]
        before = {name: t.clone() for name, t in codes.state_dict().items()}
        codes.started.fill_(True)
        optimizer = torch.optim.Adam([*codes.encoder.parameters(), *codes.decoder.parameters()], lfq.PRETRAINING_RATE)
        value = loss(codes, every if mixed else z)
        for _ in range(STEPS):
            optimizer.zero_grad()
            value().backward()
            optimizer.step()
        optimizer.zero_grad()
        codes.age.fill_(codes.spec.freq)
        behind(codes, before)
        told.update(tells(codes, every))

    usual = Split.guarded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lfq._Codes, "_autoencode", autoencode)
        patch.setattr(Split, "guarded", guarded)
        data = parts(plan.data.load(), aux=0, val=plan.val_share, seed=seed)
        run = LocalRun(plan, data, classes=10, at_server=[listen])
        run.train()
    run.use_best()
    return {"accuracy": run.carrier.evaluate("test")[0], "silent": silent[-1], **told}


@torch.no_grad()
def tells(codes, z: Tensor) -> dict[str, float]:
    found = codes._codes(z)
    ones = (found.hard > 0).float()

    def bits(p: Tensor) -> float:
        return float(-(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).mean() / torch.log(torch.tensor(2.0)))

    error = mse_loss(codes.decoder(found.seen), z) / z.var(0).mean()
    return {"apart": bits(ones.mean(0)), "used": bits(ones.mean((0, 2, 3))), "error": float(error)}


def test_what_pre_does_to_a_network_that_has_learnt_nothing():
    torch.set_num_threads(1)
    rows = []
    for variant in ("none", "server at a tenth of the rate", *VARIANTS):
        runs = [measured(variant, seed) for seed in SEEDS]
        rows.append({"variant": variant, **{key: [round(run[key], 4) for run in runs] for key in runs[0]}})
    written = {"command": "make campaign", "seeds": list(SEEDS), "steps": STEPS, "messages": LATER, "rows": rows}
    (ROOT / "docs" / "evidence" / "lfq-pre.json").write_text(json.dumps(written, indent=1) + "\n")
    by_name = {row["variant"]: row for row in rows}
    assert min(by_name["none"]["accuracy"]) > mean(by_name["pre"]["accuracy"])
    assert max(by_name["none"]["silent"]) < min(by_name["pre"]["silent"])

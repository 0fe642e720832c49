"""Longer turns with Gate: the bytes of weights they save, what they cost, and what such weights tell of labels.

    gate_turns.py DATA OUT.jsonl [--seeds 2] [--steps 1 5 20 0] [--small]

Clothing on one core (recipes/gate.py: `fashion_tiny`) in batches of 16, of which a client has 23. A client
learns from so many batches before it hands head, gate and the optimizer's state on (0: all it has). The server
carries them, so it knows the gradient of the gate's own classifier in a turn, and by it the classes in the turn's
batches: p - y is summed there, and what p is for each class it sees from its auxiliary images.
docs/evidence/gate-others.md has figures.
"""

import argparse
import json
import runpy
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from gate_frontier import ROOT, SETS, settings
from torch import Tensor

from cutlayer.core.batch import Batch
from cutlayer.core.message import Message
from cutlayer.core.state import load_changing, unnamed
from cutlayer.data.base import parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.training.orders import numbers, weights_in
from cutlayer.training.plan.roles import Phase

BATCH, FADES = 16, 0.9  # Adam's own memory of gradients
ASKED = 300  # auxiliary images that the server asks the classifier about
LOOKED = 40  # turns of the first client that are looked at, evenly spread
NAMES = ("32x2 once",)


class LabelsTold:
    """Listens to the weights that the first client is given and brings back."""

    def __init__(self, run: LocalRun):
        self._run, self._ask, self.turns = run, run.carrier.ask, list[tuple[float, float]]()
        split = run.networks[0].split
        trained = [name for name, weight in split.named_parameters() if weight.requires_grad]
        self._bias = [number for number, name in enumerate(trained) if name.endswith("classifier.bias")]
        home = sum(run.plan.roles.phase(epoch) is Phase.HOME for epoch in range(run.plan.epochs))
        turns = sum(turn.client == 0 for epoch in range(home) for one in run.timetable.rounds(epoch) for turn in one)
        self._every, self._count = max(1, turns // LOOKED), 0
        if self._bias and turns:
            run.carrier.ask = self._listen  # type: ignore[method-assign]

    def _listen(self, client: int, order: Message) -> Message:
        answer = self._ask(client, order)
        if client == 0 and weights_in(order) and weights_in(answer) and "turn" in order.tensors:
            self._count += 1
            if self._count % self._every == 0:
                self._look(order, weights_in(order), weights_in(answer))
        return answer

    def _look(self, order: Message, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        epoch, first, last, _ = numbers(order, "turn", 4)
        if self._run.plan.roles.phase(epoch) is not Phase.HOME or first >= last:
            return
        party = self._run.clients[0]
        truth = _shares(party.samples.y[torch.cat(party.order(epoch)[first:last])], self._run.task.classes)
        found = self._solved(before, self._gradient(before, after, last - first))
        common = _shares(self._run.parts.aux.y, self._run.task.classes)
        self.turns.append((_overlap(found, truth), _overlap(common, truth)))

    def _gradient(self, before: dict[str, Tensor], after: dict[str, Tensor], steps: int) -> Tensor:
        """A mean over the turn, of later batches more: Adam hands on what it remembers."""
        name = f"optimizer.{self._bias[0]}.exp_avg"
        then, now = before.get(name, torch.zeros_like(after[name])), after[name]
        return (now - FADES**steps * then) / (1 - FADES**steps)

    @torch.no_grad()
    def _solved(self, before: dict[str, Tensor], gradient: Tensor) -> Tensor:
        """The shares n of classes with gradient = (what is predicted of each class) n - n, none below 0, 1 in all."""
        predicted = self._predicted(before)
        count = len(gradient)
        left = torch.cat([predicted.T - torch.eye(count), torch.ones(1, count)]).double()
        right = torch.cat([gradient, torch.ones(1)]).double()
        found = torch.linalg.lstsq(left, right[:, None]).solution[:, 0].clamp_min(0)
        return (found / found.sum()).float()

    def _predicted(self, before: dict[str, Tensor]) -> Tensor:
        split, aux = self._run.networks[0].split, self._run.parts.aux
        kept = {name: value.clone() for name, value in split.state_dict().items()}
        load_changing(split, unnamed(before))
        rows = torch.arange(min(ASKED, len(aux)))
        seen = split.train().guarded(Batch(aux.images()[rows], aux.y[rows], seed=0))[0].seen
        classifier = next(part for name, part in split.named_modules() if name.endswith("classifier"))
        likely = classifier(seen).softmax(1)
        split.load_state_dict(kept)
        classes = range(self._run.task.classes)
        return torch.stack([likely[aux.y[rows] == one].mean(0).nan_to_num() for one in classes])


def _shares(y: Tensor, classes: int) -> Tensor:
    return y.bincount(minlength=classes).float() / len(y)


def _overlap(one: Tensor, other: Tensor) -> float:
    """The share of samples whose class both counts have in common."""
    return float(torch.minimum(one, other).sum())


def measured(name: str, local_steps: int, seed: int, folder: Path, small: bool) -> dict[str, Any]:
    began = time.process_time()
    plan, size = runpy.run_path(str(ROOT / "recipes/gate.py"))["fashion_tiny"](), SETS["fashion_tiny"]
    if small:
        plan = replace(plan, epochs=4)
    plan = replace(plan, **settings(plan.epochs, size.budget)[name], seed=seed, private_seed=seed + 1)
    plan = replace(plan, batch_size=BATCH, local_steps=local_steps)
    loaded = plan.data.load(folder)
    if small:
        loaded = replace(loaded, train=loaded.train[torch.arange(1000)], test=loaded.test[torch.arange(200)])
    data = parts(loaded, aux=300 if small else size.aux, val=0.05, seed=seed)
    run = LocalRun(plan, data, classes=len(loaded.classes))
    told = LabelsTold(run)
    run.train()
    rows = run.ledger.as_dict()["rows"]
    row = {
        "name": name, "local_steps": local_steps, "seed": seed, "plan": repr(plan),
        "batches": len(run.clients[0].order(0)), "accuracy": run.evaluate(data.test)[0],
        "ledger": run.ledger.as_dict(), "weights": sum(one["bytes"] for one in rows if one["kind"] == "WEIGHTS"),
    }  # fmt: skip
    if told.turns:
        row["labels"] = {"turns": len(told.turns), "told": mean(a for a, _ in told.turns)}
        row["labels"]["common"] = mean(b for _, b in told.turns)
    return {**row, "cpu_seconds": round(time.process_time() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5, 20, 0])
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for name in NAMES:
            for local_steps in args.steps:
                row = measured(name, local_steps, seed, args.data, args.small)
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    {key: row.get(key) for key in ("name", "local_steps", "accuracy", "weights", "labels")},
                    flush=True,
                )


if __name__ == "__main__":
    main()

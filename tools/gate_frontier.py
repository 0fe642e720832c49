"""Gate between ten clients on CIFAR-10: accuracy, bits and bytes beside what one message and all of them tell.

    gate_frontier.py DATA OUT.jsonl [--device cuda] [--jobs 8] [--minutes 9] [--seeds 3] [--only '32x2' ...]

Trains one setting a process, each from the recipe `cifar10` (recipes/gate.py) with a tenth of the data for each
client, and reads it: one message by `Decoder`, those of the whole training by `Linked`, told which row is whose. A
finished one appends a line to OUT. Nothing is begun that would not end in time. docs/evidence/gate.md has figures.
"""

import argparse
import json
import multiprocessing
import queue
import runpy
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AUX, VALIDATION, IMAGES = 10_000, 0.05, 400
ALONE = (40, 100, 200)  # epochs of a client by itself: the best by validation counts
EFFORT = {"steps": 1500, "hidden": 2048}
KEPT = (
    "ssim", "ssim_p90", "value", "interval", "identified", "identified_chance", "class_named", "reader", "readers",
    "together", "seconds",
)  # fmt: skip


def settings() -> dict[str, dict[str, Any]]:
    """By name, what a setting changes in the recipe."""
    from cutlayer.data import Dirichlet
    from cutlayer.guards import WCC, Chain, Gate, Guard, NoGuard, Quantize
    from cutlayer.training import Compression, SendOnce

    def gate(numbers: int, bits: int, wcc: float = 0.0, **more: Any) -> Guard:
        one = Gate(numbers=numbers, bits=bits, **more)
        return Chain(one, WCC(weight=wcc)) if wcc else one

    def learnt_at_home(numbers: int, bits: int, home: int = 14, split: int = 0, views: int = 1) -> dict[str, Any]:
        roles = SendOnce(home=home, split=split, views=views)
        return {"guard": gate(numbers, bits, 0.0003, home=1.0), "roles": roles}

    uneven = {"partition": Dirichlet(alpha=0.3)}
    small = Compression(answers=Quantize(bits=4), gradients=Quantize(bits=4, rounding="stochastic"))
    return {
        "open": {"guard": NoGuard()},
        "alone": {},
        "32x2": {"guard": gate(32, 2)},
        "32x2 home": {"guard": gate(32, 2, home=1.0)},
        "32x2 home WCC": {"guard": gate(32, 2, 0.001, home=1.0)},
        "32x2 home WCC compressed": {"guard": gate(32, 2, 0.001, home=1.0), "compression": small},
        "16x1 home WCC": {"guard": gate(16, 1, 0.001, home=1.0)},
        "32x2 once": learnt_at_home(32, 2),
        "32x2 once compressed": {**learnt_at_home(32, 2), "compression": small},
        "32x2 once, four views": learnt_at_home(32, 2, views=4),
        "64x2 once": learnt_at_home(64, 2),
        "16x1 once": learnt_at_home(16, 1),
        "32x1 once": learnt_at_home(32, 1),
        "32x4 once": learnt_at_home(32, 4),
        "16x1 once, split 4": learnt_at_home(16, 1, 10, 4),
        "32x2 once, split 4": learnt_at_home(32, 2, 10, 4),
        "open, uneven": {"guard": NoGuard(), **uneven},
        "32x2 home WCC, uneven": {"guard": gate(32, 2, 0.001, home=1.0), **uneven},
        "32x2 once, uneven": {**learnt_at_home(32, 2), **uneven},
        "32x2 once compressed, uneven": {**learnt_at_home(32, 2), "compression": small, **uneven},
        "32x2 home stochastic": {"guard": gate(32, 2, home=1.0, rounding="stochastic")},
        "32x2 home linear": {"guard": gate(32, 2, home=1.0, budget=0)},
    }


def measured(name: str, seed: int, folder: Path, device: str) -> dict[str, Any]:
    """One line of the table."""
    import torch

    from cutlayer.data.base import parts
    from cutlayer.training.batches import task_of

    torch.set_num_threads(2)
    began = time.time()
    plan = runpy.run_path(str(ROOT / "recipes/gate.py"))["cifar10"]()
    plan = replace(plan, **settings()[name], seed=seed, private_seed=seed + 1)
    loaded = plan.data.load(folder)
    data = parts(loaded, aux=AUX, val=VALIDATION, seed=seed)
    row = {"name": name, "seed": seed, "private": len(data.private), "epochs": plan.epochs}
    if name == "alone":
        row |= _alone(plan, data, device)
    else:
        row |= _split(plan, data, task_of(data.private, len(loaded.classes)), device)
    return {**row, "seconds": round(time.time() - began)}


def _alone(plan: Any, data: Any, device: str) -> dict[str, Any]:
    import torch

    from cutlayer.engines.local.run import LocalRun
    from cutlayer.training.protocols import Alone

    tenth = replace(data, private=data.private[torch.arange(len(data.private) // plan.clients)])
    found = {}
    for epochs in ALONE:
        own = replace(plan, clients=1, epochs=epochs, protocol=Alone(width=128), shared_client_network=False)
        run = LocalRun(own, tenth, classes=10, device=device)
        run.train()
        found[epochs] = run.progress.history[-1]["val"], run.evaluate(data.test)[0]
    return {"accuracies": found, "accuracy": max(found.values())[1]}


def _split(plan: Any, data: Any, task: Any, device: str) -> dict[str, Any]:
    from cutlayer.attacks import Decoder, Linked
    from cutlayer.audit.floors import floors
    from cutlayer.audit.judge import judge
    from cutlayer.audit.progress import Cells
    from cutlayer.audit.scene import Scene, SceneContext
    from cutlayer.training.facts.privacy import told_bits
    from cutlayer.training.facts.sides import sides
    from cutlayer.training.plan.shapes import cut_shapes

    cut, bits = cut_shapes(plan, task), told_bits(plan, cut_shapes(plan, task).shared)
    messages = bits["messages"] if bits else 0
    scene = Scene(plan, SceneContext(data, task, IMAGES, device, Cells(_unseen, {"training": 1})), epochs=messages)
    run, marks = scene.run, floors(scene.victim, data, plan.seed)
    row = {
        "plan": repr(plan),
        "accuracy": run.evaluate(data.test)[0],
        "accuracy_at_home": _at_home(run, data.test),
        "val": [one.get("val") for one in run.progress.history],
        "bits": bits,
        "ledger": run.ledger.as_dict(),
        "client_macs": sides(plan, task)["client"]["macs"],
        "floors": {
            floor: {name: marks[floor][name] for name in ("ssim", "ssim_p90")} for floor in ("mean", "class_mean")
        },
    }
    attacks = [replace(one, **EFFORT) for one in Decoder().against(plan.guard, cut.shared)]
    if bits:
        attacks.append(Linked(link="order", epochs=messages, beside=True, readers=("ridge", "mlp"), **EFFORT))
    for attack in attacks:
        found, _ = judge(attack, scene.victim, data, plan.seed)
        row[type(attack).__name__] = {key: found.get(key) for key in KEPT}
    return row


def _at_home(run: Any, samples: Any) -> float | None:
    """What the client's own classifier of its code reaches: the server adds the rest."""
    import torch

    from cutlayer.training.batches import as_batch
    from cutlayer.training.step import load

    network = run.networks[0]
    if run.coordinator.shared:
        load(network, run.coordinator.shared)
    split = network.split.eval()
    classifier = next((m for name, m in split.guard.named_modules() if name.endswith("classifier")), None)
    if classifier is None:
        return None
    right = 0
    with torch.no_grad():
        for rows in torch.arange(len(samples)).split(500):
            batch = as_batch(samples, rows).to(run.device)
            right += int((classifier(split.send(batch)).argmax(1) == batch.y).sum())
    return right / len(samples)


def _unseen(event: Any) -> None:
    pass


def _work(waiting: Any, args: argparse.Namespace, until: float) -> None:
    while True:
        try:
            name, seed = waiting.get(timeout=1)
        except queue.Empty:
            return
        if time.time() + args.longest > until:
            continue
        try:
            found = measured(name, seed, args.data, args.device)
        except Exception as error:  # the others go on
            found = {"name": name, "seed": seed, "error": repr(error), "trace": traceback.format_exc()}
        with args.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        shown = {key: found.get(key) for key in ("name", "seed", "accuracy", "accuracy_at_home", "seconds", "error")}
        print(shown, *(found.get(one, {}).get("ssim") for one in ("Decoder", "Linked")), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--longest", type=float, default=200, help="seconds that must be left to begin another")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    until, start = time.time() + 60 * args.minutes, multiprocessing.get_context("spawn")
    waiting = start.Queue()
    for seed in range(args.seeds):
        for name in args.only or settings():
            waiting.put((name, seed))
    workers = [start.Process(target=_work, args=(waiting, args, until)) for _ in range(args.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(1.0, until - time.time()))
        worker.terminate()


if __name__ == "__main__":
    main()

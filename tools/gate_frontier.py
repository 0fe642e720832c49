"""Gate between ten clients: accuracy, bits and bytes beside what one message and all of them tell.

    gate_frontier.py DATA OUT.jsonl [--sets cifar10] [--device cuda] [--jobs 8] [--minutes 9] [--seeds 3]
        [--only '32x2' ...] [--small]
    gate_frontier.py DATA OUT.jsonl --sets fashion_small series_small faces_small --device cpu --jobs 1 --seeds 3

Trains one setting a process, each from a recipe (recipes/gate.py: `cifar10`, `fashion`, `faces`, `series`, and those
named `small` and `tiny`) whose clients share the data, and reads it: one message by `Decoder`, those of the whole
training by `Linked`, told which row is whose; what a message tells of the label and of attributes by
`AttributeInference`. Of sets other than CIFAR-10 the open cut, the client alone and the setting that was fixed on
CIFAR-10 are measured, unless `--only` names others; of `small` ones also a gate that sends in every epoch, of `tiny`
ones one that is changed part by part. A finished one appends a line to OUT. Nothing is begun that would not end in
time. `--small` tries that all of it runs. docs/evidence/gate.md and gate-others.md have figures.
"""

import argparse
import base64
import json
import multiprocessing
import queue
import runpy
import time
import traceback
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VALIDATION, SHOWN = 0.05, 8
REST = ("open", "32x2 once compressed", "alone")  # the longest last


@dataclass(frozen=True)
class Set:
    """How large it is to be measured."""

    aux: int
    images: int = 400
    alone: tuple[int, ...] = (40, 100, 200)  # epochs of a client by itself: the best by validation counts
    steps: int = 1500
    hidden: int = 2048
    budget: int = 4_200_000  # of the gate: about what the head costs
    names: tuple[str, ...] = REST
    readers: tuple[str, ...] = ()  # those that read; none said: all, and labels and attributes are asked for, too
    link_one: bool = True  # whether what was sent once is read by `Linked` as well, which has nothing to link there


PARTS = (  # of a gate that sends in every epoch: one at a time is another
    "32x2 home", "8x2 home", "128x2 home", "32x1 home", "32x4 home", "32x2", "32x2 home linear", "32x2 home wide",
    "32x2 home stochastic", "32x2 home WCC", "32x2 home WCC .01", "32x2 home, half the epochs",
    "32x2 home, twice the epochs", "32x2 once", "open",
)  # fmt: skip
ON_A_CORE: dict[str, Any] = {
    "images": 200,
    "alone": (20, 40, 80),
    "steps": 300,
    "hidden": 512,
    "link_one": False,
    "names": ("open", "32x2 home WCC", "32x2 once compressed", "alone"),
}
SETS = {
    "cifar10": Set(10_000),
    "fashion": Set(10_000),
    "faces": Set(800),
    "series": Set(10_000),
    "fashion_small": Set(3_000, budget=288_000, **ON_A_CORE),
    "fashion_tiny": Set(1_000, 150, (), 100, 256, 288_000, PARTS, ("mlp", "levels"), link_one=False),
    "series_small": Set(3_000, budget=175_000, **ON_A_CORE),
    "faces_small": Set(800, budget=1_350_000, **ON_A_CORE),
}
KEPT = (
    "ssim", "ssim_p90", "correlation_either", "correlation_p90", "value", "chance", "interval", "identified",
    "identified_chance", "class_named", "reader", "readers", "together", "seconds",
)  # fmt: skip


def settings(epochs: int = 20, budget: int = Set.budget) -> dict[str, dict[str, Any]]:
    """By name, what a setting changes in a recipe of so many epochs whose gate has this budget."""
    from cutlayer.data import Dirichlet
    from cutlayer.guards import WCC, Chain, Gate, Guard, NoGuard, Quantize
    from cutlayer.training import Compression, SendOnce

    def gate(numbers: int, bits: int, wcc: float = 0.0, **more: Any) -> Guard:
        one = Gate(**{"numbers": numbers, "bits": bits, "budget": budget, **more})
        return Chain(one, WCC(weight=wcc)) if wcc else one

    def learnt_at_home(numbers: int, bits: int, home: int = 14, split: int = 0, views: int = 1) -> dict[str, Any]:
        roles = SendOnce(home=home * epochs // 20, split=split * epochs // 20, views=views)
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
        "32x2 home wide": {"guard": gate(32, 2, home=1.0, budget=4 * budget)},
        "8x2 home": {"guard": gate(8, 2, home=1.0)},
        "128x2 home": {"guard": gate(128, 2, home=1.0)},
        "32x1 home": {"guard": gate(32, 1, home=1.0)},
        "32x4 home": {"guard": gate(32, 4, home=1.0)},
        "32x2 home WCC .01": {"guard": gate(32, 2, 0.01, home=1.0)},
        "32x2 home, half the epochs": {"guard": gate(32, 2, home=1.0), "epochs": epochs // 2},
        "32x2 home, twice the epochs": {"guard": gate(32, 2, home=1.0), "epochs": 2 * epochs},
    }


def measured(data_set: str, name: str, seed: int, folder: Path, device: str, small: bool = False) -> dict[str, Any]:
    """One line of the table."""
    import torch

    from cutlayer.data.base import parts
    from cutlayer.training.batches import task_of

    torch.set_num_threads(1 if small or device == "cpu" else 2)
    began = time.time()
    plan, size = runpy.run_path(str(ROOT / "recipes/gate.py"))[data_set](), SETS[data_set]
    loaded = plan.data.load(folder)
    if small:
        few, plan = torch.arange(400), replace(plan, batch_size=16, epochs=4)
        loaded = replace(loaded, train=loaded.train[few], test=loaded.test[few[:100]])
        size = replace(size, aux=150, images=24, alone=(1, 2), steps=10, hidden=16)
    plan = replace(plan, **settings(plan.epochs, size.budget)[name], seed=seed, private_seed=seed + 1)
    loaded = replace(loaded, train=_told(loaded.train), test=_told(loaded.test))
    data = parts(loaded, aux=size.aux, val=VALIDATION, seed=seed)
    row = {"data": data_set, "name": name, "seed": seed, "private": len(data.private), "epochs": plan.epochs}
    if name == "alone":
        row |= _alone(plan, data, len(loaded.classes), device, size.alone)
    else:
        row |= _split(plan, data, task_of(data.private, len(loaded.classes)), device, size)
    return {**row, "seconds": round(time.time() - began)}


def _told(samples: Any) -> Any:
    """Of each sample what an attacker is after besides its picture: the label, and of faces age and race."""
    import torch

    from cutlayer.data.utkface import AGES

    kept = {name: values for name, values in samples.s.items() if name == "race"}
    if "age" in samples.s:
        kept["age group"] = torch.bucketize(samples.s["age"], torch.tensor(AGES), right=True)
    return replace(samples, s={"label": samples.y, **kept})


def _alone(plan: Any, data: Any, classes: int, device: str, long: tuple[int, ...]) -> dict[str, Any]:
    import torch

    from cutlayer.engines.local.run import LocalRun
    from cutlayer.training.protocols import Alone

    tenth = replace(data, private=data.private[torch.arange(len(data.private) // plan.clients)])
    found = {}
    for epochs in long:
        own = replace(plan, clients=1, epochs=epochs, protocol=Alone(width=128), shared_client_network=False)
        run = LocalRun(own, tenth, classes=classes, device=device)
        run.train()
        found[epochs] = run.progress.history[-1]["val"], run.evaluate(data.test)[0]
    return {"accuracies": found, "accuracy": max(found.values())[1]}


def _split(plan: Any, data: Any, task: Any, device: str, size: Set) -> dict[str, Any]:
    from cutlayer.attacks import Decoder, Linked
    from cutlayer.audit.judge import judge
    from cutlayer.audit.kinds import KINDS
    from cutlayer.audit.progress import Cells
    from cutlayer.audit.scene import Scene, SceneContext
    from cutlayer.data import UTKFace
    from cutlayer.training.facts.privacy import told_bits
    from cutlayer.training.facts.sides import sides
    from cutlayer.training.plan.shapes import cut_shapes

    cut = cut_shapes(plan, task)
    coded = told_bits(plan, cut.shared, plan.epochs)
    bits = coded or {"message": 32 * prod(cut.shared), "messages": plan.epochs}
    recorded = bits["messages"] if coded else 0
    scene = Scene(
        plan, SceneContext(data, task, size.images, device, Cells(_unseen, {"training": 1})), epochs=recorded
    )
    run = scene.run
    row: dict[str, Any] = {
        "plan": repr(plan),
        "accuracy": run.evaluate(data.test)[0],
        "accuracy_at_home": _at_home(run, data.test),
        "val": [one.get("val") for one in run.progress.history],
        "bits": bits["message"],
        "messages": bits["messages"],
        "told_bits": bits["message"] * bits["messages"],
        "ledger": run.ledger.as_dict(),
        "client_macs": sides(plan, task)["client"]["macs"],
        "floors": _floors(scene.victim, data),
        "told_by_class": {name: _told_by_class(name, scene.victim, data) for name in data.aux.s if name != "label"},
    }
    effort = {"steps": size.steps, "hidden": size.hidden}
    attacks = [replace(one, **effort) for one in Decoder().against(plan.guard, cut.shared)]
    if coded and size.readers:
        attacks = [replace(one, readers=size.readers) for one in attacks]
    if recorded > 1 or (coded and size.link_one):
        readers = size.readers or ("ridge", "mlp", "levels", "prior", "search")
        attacks.append(Linked(link="order", epochs=recorded, beside=True, readers=readers, **effort))
    for attack in attacks:
        found, made = judge(attack, scene.victim, data, plan.seed)
        kind = type(attack).__name__
        row[kind] = _kept(found)
        if plan.seed == 0 and not isinstance(plan.data, UTKFace):  # no pictures of real people in what is published
            row.setdefault("pictures", {"truth": _bytes(scene.victim.truth)})[kind] = _bytes(made)
    row["kind"] = KINDS[task.kind].metric
    return row if size.readers else {**row, "tells": _tells(scene.victim, data, plan.seed, effort)}


def _tells(victim: Any, data: Any, seed: int, effort: dict[str, int]) -> dict[str, Any]:
    """What a message tells of the label and of attributes, and `du` of the label."""
    from cutlayer.attacks import AttributeInference, LabelClustering
    from cutlayer.audit.judge import judge

    tells = {}
    for name in data.aux.s:
        asked = AttributeInference(name, width=min(64, effort["hidden"]), **effort)
        tells[name] = _kept(judge(asked, victim, data, seed)[0])
    return tells | {"label, from du": _kept(judge(LabelClustering(), victim, data, seed)[0])}


def _kept(figures: Any) -> dict[str, Any]:
    return {name: figures[name] for name in KEPT if figures.get(name) is not None}


def _floors(victim: Any, data: Any) -> dict[str, Any]:
    """What the mean of all auxiliary samples, and of those of the class, would score."""
    import torch

    from cutlayer.audit.row_scores import figures_of
    from cutlayer.metrics.images import scores

    x, y, truth = data.aux.images(), data.aux.y, victim.truth
    by_class = torch.stack([x[y == one].mean(0) for one in y.unique()])
    guesses = {"mean": x.mean(0).to(truth).expand_as(truth), "class_mean": by_class.to(truth)[victim.y]}
    pictures = truth.dim() == 4
    return {
        name: _kept(scores(truth, guess) if pictures else figures_of(truth, guess, data))
        for name, guess in guesses.items()
    }


def _told_by_class(name: str, victim: Any, data: Any) -> float:
    """How often the commonest value among the auxiliary samples of its class is a sample's: what the label tells."""
    import torch

    likely = [data.aux.s[name][data.aux.y == one].mode().values for one in data.aux.y.unique()]
    return float((torch.stack(likely)[victim.y.cpu()] == victim.s[name].cpu()).double().mean())


def _bytes(made: Any) -> dict[str, Any]:
    """The first few, as text: of pictures one byte a pixel."""
    import torch

    few = (255 * made[:SHOWN].detach().cpu().clamp(0, 1)).round().to(torch.uint8).contiguous()
    return {"shape": list(few.shape), "bytes": base64.b64encode(few.numpy().tobytes()).decode()}


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
            data_set, name, seed = waiting.get(timeout=1)
        except queue.Empty:
            return
        if time.time() + args.longest > until:
            continue
        try:
            found = measured(data_set, name, seed, args.data, args.device, args.small)
        except Exception as error:  # the others go on
            found = {"error": repr(error), "trace": traceback.format_exc()}
            found |= {"data": data_set, "name": name, "seed": seed}
        with args.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        told = ("data", "name", "seed", "accuracy", "accuracy_at_home", "seconds", "error")
        read = (found.get(one, {}).get("value") for one in ("Decoder", "Linked"))
        tells = {name: one["value"] for name, one in found.get("tells", {}).items()}
        print({key: found.get(key) for key in told}, *read, tells, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--longest", type=float, default=200, help="seconds that must be left to begin another")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sets", nargs="+", default=["cifar10"], choices=SETS)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    until, start = time.time() + 60 * args.minutes, multiprocessing.get_context("spawn")
    waiting = start.Queue()
    for seed in range(args.seeds):
        for data_set in args.sets:
            for name in args.only or (settings() if data_set == "cifar10" else SETS[data_set].names):
                waiting.put((data_set, name, seed))
    workers = [start.Process(target=_work, args=(waiting, args, until)) for _ in range(args.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(1.0, until - time.time()))
        worker.terminate()


if __name__ == "__main__":
    main()

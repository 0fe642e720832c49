"""What eleven guards leave of a text, names and numbers among it, behind none, one and two layers: the smaller run.

Reviews, a narrow network, and attacks far below their default: two cores do it. The larger columns of the page were
made on a GPU (its command is there).
"""

import json
from pathlib import Path

import pytest
import torch

from cutlayer.attacks import Decoder, Dictionary
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.uncertainty import intervals
from cutlayer.data import IMDB
from cutlayer.guards import DPSGD, LFQ, SEAL, KAnonymous, LightSplit, Noise, NoPeek, Quantize, TopK
from cutlayer.nets import TextEncoder
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.plan import Plan

EVIDENCE = Path(__file__).parents[2] / "docs/evidence/text-guards.json"
GUARDS = (
    DPSGD(clip=1.0, noise=0.5), KAnonymous(k=5), LFQ(groups=1, bits=13), LightSplit(ratio=8), NoPeek(alpha=0.5),
    Noise(scale=0.1), Quantize(bits=2), SEAL(energy=0.7), SEAL(energy=0.7, dims=1), TopK(share=0.05),
)  # fmt: skip
ATTACKS = (Decoder(steps=40, width=16, readers=("ridge", "conv", "augmented")), Dictionary())
SETTINGS = {
    "length": 24, "vocabulary": 1000, "limit": 800, "aux": 300, "images": 64, "width": 32, "layers": 4, "epochs": 3,
    "seeds": [0, 1, 2],
}  # fmt: skip
TOLD = (
    "seed", "guard", "attack", "value", "token_p90", "rouge_l", "names_found", "accuracy", "valid", "why_invalid",
    "ceiling", "reader", "interval",
)  # fmt: skip


def plan_at(layer):
    slow = Adam(lr=1e-3)
    net = TextEncoder(layers=SETTINGS["layers"], width=SETTINGS["width"], heads=4, at=layer, vocabulary=1000)
    data = IMDB(length=SETTINGS["length"], vocabulary=SETTINGS["vocabulary"], limit=SETTINGS["limit"])
    return Plan(
        net=net, data=data, batch_size=32, epochs=SETTINGS["epochs"], aux_samples=SETTINGS["aux"],
        client_optimizer=slow, server_optimizer=slow,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SETTINGS["seeds"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_what_guards_leave_of_a_text(layer, seed):
    torch.set_num_threads(1)
    plan = plan_at(layer)
    spec = AuditSpec(plan, GUARDS, ATTACKS, seeds=(seed,), images=SETTINGS["images"], alone=False)
    done = audit(spec, plan.data.load())
    texts = [row for row in done.rows if row["secret"] == "texts"]
    rows = [{"at": layer, **{name: row.get(name) for name in TOLD}, **_names(row)} for row in texts]
    _record(layer, seed, rows, done.floors)
    best = max(row["value"] for row in rows if row["guard"] == "none")
    assert best >= 0.95 or layer > 0, f"the open embedding cut is a lookup, and {best:.2f} of the tokens came back"


def _names(row):
    """How many texts have any, and 95 % over these."""
    each = row.get("names_each")
    found = {"names_texts": 0 if each is None else len(each["scores"])}
    return found | {"names_interval": intervals(row).get("names") if each is not None else None}


def _record(layer, seed, rows, floors):
    told = json.loads(EVIDENCE.read_text())
    others = [row for row in told["cpu"] if (row["at"], row["seed"]) != (layer, seed)]
    told["cpu"] = sorted([*others, *rows], key=lambda row: (row["at"], row["seed"]))
    told["settings"]["cpu"] = SETTINGS
    told["floors"].setdefault("cpu_each", {})[f"layer {layer}, seed {seed}"] = {
        name: {figure: marks[figure] for figure in ("token_accuracy", "names_found")}
        for name, marks in floors.items()
    }
    EVIDENCE.write_text(json.dumps(told, indent=1) + "\n")


pytestmark = pytest.mark.campaign

"""What weights that change hands after a batch tell of reviews: by the size of the batch, the cut and the guard."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_text_guards import SETTINGS, plan_at

from cutlayer.attacks import Dictionary, GradientMatching
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.guards import DPSGD, Noise

EVIDENCE = Path(__file__).parents[2] / "docs/evidence/gradient-matching.json"
GUARDS = (Noise(scale=0.1), DPSGD(clip=1.0, noise=0.5))
TOLD = (
    "guard",
    "attack",
    "value",
    "token_p90",
    "names_found",
    "accuracy",
    "valid",
    "why_invalid",
    "match",
    "interval",
)
IMAGES = 32


@pytest.mark.parametrize("batch", [4, 16, 32])
@pytest.mark.parametrize("layer", [0, 1])
def test_what_a_batchs_gradient_tells(layer, batch):
    torch.set_num_threads(1)
    plan = replace(plan_at(layer), clients=4, batch_size=batch, epochs=1)
    spec = AuditSpec(plan, GUARDS, (GradientMatching(), Dictionary()), images=IMAGES, alone=False)
    done = audit(spec, plan.data.load())
    rows = [{"at": layer, "batch": batch, **{name: row.get(name) for name in TOLD}} for row in done.rows]
    told = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {"rows": []}
    others = [row for row in told["rows"] if (row["at"], row["batch"]) != (layer, batch)]
    told["rows"] = sorted([*others, *rows], key=lambda row: (row["at"], row["batch"]))
    told["settings"] = {**SETTINGS, "clients": 4, "epochs": 1, "images": IMAGES, "seeds": [0]}
    told["blind"] = done.floors["mean"]["token_accuracy"]
    EVIDENCE.write_text(json.dumps(told, indent=1) + "\n")
    best = max(row["value"] for row in rows if row["guard"] == "none" and "Gradient" in row["attack"])
    assert best > 0.8 or layer or batch > 4, f"of small batches at the embedding {best:.2f} came back"


pytestmark = pytest.mark.campaign

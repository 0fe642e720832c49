"""Three claims small enough for every run of the tests: one short audit of 800 digits by a linear reader.

A committed band says where each figure lay over several seeds; a change that moves one out of it has changed a finding.
"""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from ...attacks import Decoder
from ...core.files import write_text
from ...data import Digits
from ...guards import DCT, SEAL, KAnonymous, LightSplit, NoGuard, Subset
from ...nets import MnistNet
from ...training.plan.optimizers import Adam
from ...training.plan.plan import Plan
from ..judge import judge
from ..matrix import Matrix
from ..scene import Scene
from ..spec import AuditSpec, Resources

BANDS = "docs/evidence/bands.json"
CLAIMS = {
    "projection": "A random projection hides no more than a random subset of as many numbers: SSIM of the one less the other",
    "key": "A secret basis whose key is known hides less than the public one: SSIM behind SEAL less SSIM behind DCT",
    "groups": "Means of five samples cost far more accuracy than a point: points lost",
}
READER = Decoder(readers=("ridge",))


def measured(seed: int) -> dict[str, float]:
    """The three figures under one seed."""
    fast = Adam(lr=4e-3)
    plan = Plan(
        net=MnistNet(), data=Digits(limit=800), epochs=3, batch_size=32, aux_samples=300, client_optimizer=fast,
        server_optimizer=fast,
    )  # fmt: skip
    guards = {
        "projected": LightSplit(ratio=8), "subset": Subset(ratio=8), "secret": SEAL(energy=0.7), "public": DCT(energy=0.7),
        "groups": KAnonymous(k=5),
    }  # fmt: skip
    spec = AuditSpec(plan, tuple(guards.values()), (READER,), seeds=(seed,), images=64, alone=False)
    matrix = Matrix(spec, plan.data.load(), Resources())
    shared = matrix.context(seed)
    scenes = {name: matrix.scene(seed, guard, shared) for name, guard in guards.items()}
    bare = matrix.scene(seed, NoGuard(), shared)
    return {
        "projection": _read(scenes["projected"]) - _read(scenes["subset"]),
        "key": _read(scenes["secret"], replace(READER, keys="true")) - _read(scenes["public"]),
        "groups": 100 * (_accuracy(bare) - _accuracy(scenes["groups"])),
    }


def _read(scene: Scene, reader: Decoder = READER) -> float:
    row, _ = judge(reader, scene.victim, scene.shared.data, scene.plan.seed, None, 0)
    return row["value"]


def _accuracy(scene: Scene) -> float:
    return mean(scene.run.evaluate(scene.run.parts.test))


def bands(seeds: range) -> dict[str, Any]:
    """Where each figure lies over seeds, widened by half of its width on either side."""
    found = [measured(seed) for seed in seeds]
    told: dict[str, Any] = {}
    for name, claim in CLAIMS.items():
        values = [one[name] for one in found]
        half = (max(values) - min(values)) / 2
        told[name] = {
            "claim": claim,
            "by_seed": [round(value, 4) for value in values],
            "band": [round(min(values) - half, 4), round(max(values) + half, 4)],
        }
    return {"command": "python tools/evidence.py bands", "seeds": list(seeds), "claims": told}


def write(root: Path) -> None:
    write_text(root / BANDS, json.dumps(bands(range(5)), indent=1) + "\n")

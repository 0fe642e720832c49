"""What keeps FORA and PCAT from texts: heads aligned with the messages fail their control, whatever is aligned.

On a small language of 40 words (`text_toys.py`), where `Cipher` and `Decoder` read nearly all, and on film reviews.
"""

import json
from pathlib import Path

import pytest
import torch
from aligned_texts import BY, Aligned
from text_toys import TextNet, audited, text_plan, texts

from cutlayer import Vanilla
from cutlayer.attacks import Cipher, Decoder
from cutlayer.audit.floors import blind_guess
from cutlayer.data import IMDB
from cutlayer.nets import TextEncoder

EVIDENCE = Path(__file__).parents[2] / "docs/evidence/aligned-texts.json"
CASES = {  # what is cut: the seed, for how many steps a head is aligned, and by what
    "40 words": (0, 400, BY),
    "40 words, other numbers": (1, 400, BY),
    "40 words, three times as long": (0, 1200, ("pairs", "body")),
    "40 words, ten times as long": (0, 4000, ("pairs",)),
    "reviews, 300 words": (0, 400, ("pairs", "body")),
}
READ = Decoder(steps=60, width=16, hidden=32, readers=("ridge", "conv"))
TOLD = ("attack", "value", "valid", "why_invalid", "mmd", "readers", "interval")


def plan_of(case, at, seed):
    if case.startswith("40"):
        return text_plan(net=TextNet(at=at), protocol=Vanilla(), aux_samples=300, seed=seed), texts(700)
    net = TextEncoder(layers=2, width=16, heads=2, at=at, vocabulary=300)
    plan = text_plan(net=net, data=IMDB(length=16, vocabulary=300, limit=1200), protocol=Vanilla(), aux_samples=500)
    return plan, plan.data.load()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_aligned_heads_fail_their_control(case, at):
    torch.set_num_threads(1)
    seed, steps, by = CASES[case]
    plan, loaded = plan_of(case, at, seed)
    known = [READ, Cipher()] if at == 0 else [READ]
    attacks = [*known, *(Aligned(by=one, steps=steps) for one in by)]
    done = audited(plan, loaded=loaded, attacks=attacks, seeds=(seed,))
    floor = blind_guess(done.floors, "token_accuracy")
    rows = [{name: row[name] for name in TOLD if name in row} | {"at": at} for row in done.rows]
    _record(f"{case}, layer {at}", floor, rows)
    assert rows[0]["value"] > 0.9 or not case.startswith("40")
    for row in rows[len(known) :]:
        assert not row["valid"], f"{row['attack']} reads {row['value']:.2f}: then it belongs into the package"


def _record(name, floor, rows):
    told = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    command = "python -m pytest -m campaign tests/campaign/test_aligned_texts.py"
    cases = {**told.get("cases", {}), name: {"blind_guess": floor, "rows": rows}}
    EVIDENCE.write_text(json.dumps({"command": command, "cases": cases}, indent=1) + "\n")


pytestmark = pytest.mark.campaign

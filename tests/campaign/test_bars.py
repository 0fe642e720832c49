"""The full counts behind the slices in the other tests. `make campaign` runs them and records the figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_split_equals_whole import FROZEN, PROTOCOLS, check
from toys import GUARDS, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.report.files import as_data
from cutlayer.audit.spec import AuditSpec
from cutlayer.data import Digits
from cutlayer.guards import LightSplit, Subset
from cutlayer.nets import MnistNet
from cutlayer.training.plan.plan import Plan

pytestmark = pytest.mark.campaign
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


@pytest.mark.parametrize("cut", [2, 4])
def test_the_reference_decoder_passes_its_bar_and_reads_projections(cut):
    """SSIM at least 0.90 on MNIST-5000, MnistNet; projections of the same rank leak alike."""
    torch.set_num_threads(2)
    plan = Plan(net=MnistNet(cut=cut), data=Digits(), epochs=10, aux_samples=2000)
    guards = [LightSplit(ratio=8), Subset(ratio=8), LightSplit(ratio=32), Subset(ratio=32)]
    result = audit(AuditSpec(plan, guards, [Decoder()], images=400), plan.data.load())
    torch.set_num_threads(1)
    (EVIDENCE / f"mnistnet-cut{cut}.json").write_text(json.dumps(as_data(result, "make campaign"), indent=1) + "\n")
    ssim = {row["guard"]: row["ssim"] for row in result.rows}
    assert ssim["none"] >= 0.90
    for ratio in (8, 32):
        assert ssim[f"LightSplit(ratio={ratio})"] == pytest.approx(ssim[f"Subset(ratio={ratio})"], abs=0.1)


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda frozen: "+".join(frozen) or "all-train")
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_split_equals_whole_for_two_hundred_steps(protocol, frozen):
    for guard in GUARDS:
        check(replace(tiny_plan(guard=guard), protocol=protocol, frozen_parts=frozen), steps=200)

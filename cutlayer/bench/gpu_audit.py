"""How long a whole audit takes on one GPU: eight guards against the reference decoder on full CIFAR-10."""

import time
from collections.abc import Callable

import torch

from ..attacks import Decoder
from ..audit.matrix import audit
from ..audit.parallel import PROCESSES, Where, spread
from ..audit.spec import AuditSpec, Resources
from ..data import CIFAR10
from ..data.base import Loaded, MissingData
from ..guards import DCT, SEAL, Bottleneck1x1, Guard, LightSplit, NoPeek, Quantize, Subset
from ..nets.resnet import ResNet18
from ..training.plan.lr_schedules import Cosine
from ..training.plan.optimizers import SGD
from ..training.plan.plan import Plan
from .measurement import Measured

SECONDS = 360.0  # that it may take
JOBS = 6  # cells at once, as with `cutlayer audit --jobs 6`: one alone leaves most of a large GPU idle
GUARDS: tuple[Guard, ...] = (
    Subset(ratio=8), LightSplit(ratio=8), LightSplit(ratio=32), Bottleneck1x1(ratio=8), SEAL(energy=0.7),
    DCT(energy=0.7), Quantize(bits=4), NoPeek(alpha=0.5),
)  # fmt: skip
RATE = SGD(lr=0.05, weight_decay=5e-4)


def wanted(quick: bool) -> AuditSpec:
    plan = Plan(
        data=CIFAR10(), net=ResNet18(depth=2), batch_size=128, epochs=1 if quick else 12, aux_samples=10_000,
        client_optimizer=RATE, server_optimizer=RATE, schedule=Cosine(),
    )  # fmt: skip
    decoder = Decoder(steps=20, width=16) if quick else Decoder(steps=1000, width=128)
    return AuditSpec(plan, GUARDS, [decoder], images=512, alone=False)


def gpu_audit(quick: bool) -> Measured | None:
    """Eight guards and the open cut against Decoder, CIFAR-10 in full: seconds on one GPU, against 360."""
    if not torch.cuda.is_available():
        return None
    spec = wanted(quick)
    try:
        loaded = spec.plan.data.load(None)
    except MissingData:
        return None
    return timed(spec, loaded, "cuda", JOBS)


def timed(spec: AuditSpec, loaded: Loaded, device: str, jobs: int = 1) -> Measured:
    """The clock's seconds of one audit; a guard that was left out would make it look faster."""
    began, resources = time.perf_counter(), Resources(device)
    if jobs > 1:
        spread(spec, loaded, resources, Where(PROCESSES, jobs), lambda shown: None)
    found = audit(spec, loaded, resources)
    seconds = time.perf_counter() - began
    if found.left_out or found.not_tried:
        raise RuntimeError(f"an audit without some of its cells is no measure: {found.left_out or found.not_tried}")
    what = f"what it may take: {SECONDS:.0f} s ({len(found.rows)} rows)"
    return Measured(seconds, "s", SECONDS / seconds, what, ">= 1.0")


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {"gpu.audit": gpu_audit}

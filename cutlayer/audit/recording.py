"""Attack a recording: the same bytes for every attack, and the run that made them long over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks import Attack
from ..attacks.base import REQUIRED
from ..core.message import Kind, Message
from ..data.samples import Samples
from ..engines.folder import TRANSCRIPT, load_plan
from ..engines.local.run import LocalRun
from ..engines.local.start import ready
from ..metrics.lpips import LPIPS
from ..training import checkpoint
from ..training.plan.shapes import cut_shapes
from ..wire.transcript import read
from .control import why_invalid
from .facts import refuse_overlap, refuse_scored_copies
from .floors import floors
from .judge import judge
from .knowledge import why_pointless
from .tables import with_secret_columns, without_copies
from .victim import Victim, WhiteBox, ends_still, uploads


class Recorded(Victim):
    """One client as a recording shows it: the newest batches are judged, all of them may be studied."""

    def __init__(self, run: LocalRun, messages: Sequence[Message], images: int, client: int = 0):
        if run.plan.guard.mixes_samples:
            raise ValueError(
                f"which samples stand behind a row of {run.plan.guard} is not in the messages: judge it with an audit"
            )
        if run.plan.data.augment:
            raise ValueError(
                f"what was sent are crops or mirror images of {run.plan.data}, and which ones is not looked up: "
                "judge it with an audit"
            )
        self.run, self.network, self.still = run, run.newest(client), ends_still(run.plan)
        own = [m for m in messages if m.client == client and m.kind is not Kind.PREDICT]
        forward = uploads(own)
        if not forward:
            raise ValueError(f"the recording has no training messages of client {client}")
        first, count = len(forward), 0
        while first and count < images:
            first -= 1
            count += len(forward[first]["z"])
        steps = {message.step for message in forward[first:]}
        self.messages = [message for message in own if message.step in steps]
        self.rows = [None] * (len(forward) - first)
        self.units, self.passes, self.bodies = None, [], None
        self.observed = self.history = own
        samples = run.samples[client]
        pick = torch.cat([run.batch_of(client, message.step) for message in forward[first:]])
        self.unscored = (~torch.isin(torch.arange(len(samples)), pick.cpu())).nonzero().flatten()
        self.y = samples.y[pick]
        self.s = {name: values[pick] for name, values in samples.s.items()}
        self.truth = self.gallery = samples.images(pick.to(samples.y.device))
        self.box = WhiteBox(self.network.split, run.plan.batch_size, self.still)


def attack_recording(
    folder: Path,
    attacks: Sequence[Attack],
    *,
    images: int = 256,
    data_dir: Path | None = None,
    device: str = "cpu",
    seed: int = 0,
    lpips: LPIPS | None = None,
) -> tuple[dict[str, Any], Victim, dict[str, Tensor]]:
    """(what attack.json holds, the victim with the truth, pictures by attack).

    There is no unguarded run beside it, so no control: an attack that fails here may simply be weak. An audit tells.
    """
    plan = load_plan(folder)
    if not (folder / TRANSCRIPT).exists():
        raise FileNotFoundError(
            f"there is no recording in {folder}: train with --record 64 --aux-samples 1000, and attack that folder"
        )
    run = ready(plan, data_dir, device, prepared=lambda loaded: with_secret_columns(loaded, attacks))
    run.restore(*checkpoint.load(folder / "last.safetensors"))
    victim = Recorded(run, read(folder / TRANSCRIPT), images)
    if not len(run.parts.aux):
        raise ValueError(f"{folder} set no images aside for the attacker: train with --aux-samples N")
    refuse_overlap(run.parts)
    refuse_scored_copies(run.parts, Samples(victim.truth, victim.y))
    data, _ = without_copies(run.parts)
    for attack in attacks:
        if lacking := [name for name in ("passes", "bodies") if name in attack.needs]:
            raise ValueError(f"{attack} needs {REQUIRED[lacking[0]]}: that is not in a recording, run an audit")
        why = why_pointless(attack, plan, run.task, data, images)
        if why is not None:
            raise ValueError(why)
    rows, pictures = [], {}
    for attack in attacks:
        for form in attack.against(plan.guard, cut_shapes(plan, run.task).shared):
            row, guess = judge(form, victim, data, seed, lpips)
            rows.append({**row, "why_invalid": why_invalid(row, None)})
            if guess is not None:
                pictures[repr(form)] = guess
    found = {
        "plan": repr(plan),
        "messages": len(victim.observed),
        "control": "none: run an audit to see whether these attacks succeed on the unguarded cut",
        "floors": floors(victim, data, seed, lpips),
        "rows": rows,
    }
    return found, victim, pictures

"""Detectors at their default settings on real images: silent in honest training, and in time when FSHA trains."""

import json
from pathlib import Path

import pytest
import torch
from hijacks import WATCH, digits, hijacked, honest

from cutlayer.attacks import FSHA
from cutlayer.nets import MnistNet, SimpleCNN
from cutlayer.training.protocols import UShaped, Vanilla

pytestmark = pytest.mark.campaign
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
SEEDS = range(5)
EPOCHS = {Vanilla(): 40, UShaped(): 6}  # of digits: 2,000 and 300 steps
COMMAND = "python -m pytest -m campaign tests/campaign/test_watchdogs.py"
DISGUISES = [{"evade": 0.5}, {"evade": 0.7}, {"evade": 0.7, "joins": 200}, {"evade": 0.8, "joins": 200}]
nets = pytest.mark.parametrize("net", [MnistNet(), SimpleCNN()], ids=["MnistNet", "SimpleCNN"])
protocols = pytest.mark.parametrize("protocol", [Vanilla(), UShaped()], ids=repr)


@nets
@protocols
def test_no_alarm_in_honest_training_and_fsha_is_stopped_in_time(net, protocol):
    torch.set_num_threads(1)
    cells = []
    for seed in SEEDS:
        plan, data = digits(net, protocol, seed, EPOCHS[protocol])
        found = hijacked(FSHA(steps=300), plan, data)
        cells.append(
            {"seed": seed, **honest(plan, data), "fsha": found["watched"], "class_mean": found["class_mean"]}
        )
        record(f"{type(net).__name__}, {protocol}", cells)
    for cell in cells:
        assert all(row["false_alarms"] == 0 for row in cell["honest"])
        assert all(row["detected"] for row in cell["fsha"])
        floor = cell["class_mean"]
        in_time = [row for row in cell["fsha"] if row["ssim"] < floor["ssim"] and row["ncc"] < floor["ncc"]]
        assert in_time, cell


@nets
def test_a_hijacker_in_disguise_is_not_noticed_and_reads_all_the_same(net):
    """What no detector of these should be trusted with. A detector that fails this test is progress."""
    torch.set_num_threads(1)
    found = []
    for seed, protocol in enumerate((Vanilla(), UShaped())):
        for disguise in DISGUISES:
            plan, data = digits(net, protocol, seed, 1)
            found.append(hijacked(FSHA(steps=1000, **disguise), plan, data))
            record(f"disguised: {type(net).__name__}", found)
    unseen = [one for one in found if not any(row["detected"] for row in one["watched"])]
    assert max(one["end"]["ssim"] - one["class_mean"]["ssim"] for one in unseen) > 0.3


def record(name, cells):
    """Beside what the others found, after every run; what missed its bar is written down too."""
    path = EVIDENCE / "watchdogs.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | {"command": COMMAND, name: cells}, indent=1) + "\n")


def table(found):
    """The first test in one table."""
    lines = [
        "| network, protocol | detector | honest steps | false alarms per 1,000 | lowest honest score "
        "| delay in steps | SSIM at the alarm | NCC at the alarm | class mean SSIM, NCC |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, cells in found.items():
        if name == "command" or name.startswith("disguised"):
            continue
        for place in range(len(WATCH)):
            honest = [cell["honest"][place] for cell in cells]
            evil = [cell["fsha"][place] for cell in cells]
            steps, alarms = (sum(row[key] for row in honest) for key in ("steps", "false_alarms"))
            caught = [row for row in evil if row["detected"]]
            delays = [row["delay"] for row in caught]
            floor = [sum(cell["class_mean"][key] for cell in cells) / len(cells) for key in ("ssim", "ncc")]
            shown = f"{min(delays)} to {max(delays)}" if delays else "never"
            missed = f" ({len(evil) - len(caught)} missed)" if len(caught) < len(evil) else ""
            lines.append(
                f"| {name} | `{honest[0]['detector']}` | {steps} | {1000 * alarms / steps:.1f} | "
                f"{min(row['lowest'] for row in honest):.3f} | {shown}{missed} | {_spread(caught, 'ssim')} | "
                f"{_spread(caught, 'ncc')} | {floor[0]:.3f}, {floor[1]:.3f} |"
            )
    return "\n".join(lines)


def disguises(found):
    """The second test: who noticed, at which step, and what was read in the end."""
    names = [type(one).__name__ for one in WATCH]
    lines = [
        f"| network | attack | {' | '.join(names)} | SSIM at the end | NCC | class mean SSIM, NCC |",
        "|---|---|" + "---|" * 6,
    ]
    for name, cells in found.items():
        for one in cells if name.startswith("disguised") else ():
            when = [str(row["delay"]) if row["detected"] else "–" for row in one["watched"]]
            end, floor, net = one["end"], one["class_mean"], name.split(": ")[1]
            lines.append(
                f"| {net} | `{one['attack']}` | {' | '.join(when)} | {end['ssim']:.3f} | {end['ncc']:.3f} "
                f"| {floor['ssim']:.3f}, {floor['ncc']:.3f} |"
            )
    return "\n".join(lines)


def _spread(rows, name):
    values = [row[name] for row in rows]
    return f"{sum(values) / len(values):.3f} ({max(values):.3f})" if values else ""

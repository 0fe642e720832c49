"""What clients would cost a small device, whether their heads leave as programs, and pictures from disk: figures."""

import json
from pathlib import Path

import pytest
import torch
from test_recipes import plan_of, task_of

from cutlayer.bench.edge import edge
from cutlayer.bench.run import machine
from cutlayer.bench.stream import ENTRIES

pytestmark = pytest.mark.campaign
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
RECIPES = ("seal.py:cifar10_seal", "lightsplit.py:fashion_mnist_f", "lfq.py:mnist_lfq_1", "imdb.py:quick_embedding")
ABOUT = """# A client on a small device, and pictures from disk

[edge.json](edge.json), written by `tests/campaign/test_edge_figures.py` on {machine}: what
`cutlayer edge RECIPE --json` and `cutlayer bench stream --json` say. Per sample, messages of the recipe's batch size.
Times are of one thread here; the model is a core of {gflops:g} GFLOP/s and {watts:g} W with {nanojoules:g} nJ a byte.
**Nothing was measured on such a device.** Heads leave by `torch.export`; what the program gives was compared with the
head's own.

"""
COLUMNS = (
    *("recipe", "parameters", "multiply-accumulates", "learns: ms here", "ms modelled", "mJ modelled", "bytes"),
    *("predicts: ms here", "ms modelled", "mJ modelled", "bytes", "as a program"),
)
PICTURES = ("pictures from disk", "", "beside", "goal")


def table(columns, rows):
    every = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in every)


def test_figures_of_small_devices_and_of_pictures_from_disk():
    torch.set_num_threads(1)
    found = {name: edge(plan_of(name), task_of(plan_of(name))) for name in RECIPES}
    pictures = {name: measure(False) for name, measure in ENTRIES.items()}
    rows = []
    for name, one in found.items():
        own, head = one["client"], one["exported"]
        assert head["works"] and head["largest difference"] == 0, name
        modes = [
            (
                f"{row['ms here']:.3f}",
                f"{row['modelled ms']:.2f}",
                f"{row['modelled mJ']:.1f}",
                f"{row['bytes']:,.0f}",
            )
            for row in one["modes"].values()
        ]
        rows.append([f"`{name}`", f"{own['parameters']:,}", f"{own['macs']:,}", *modes[0], *modes[1], "equal"])
    assert all(pictures.values())
    told = [
        [f"`{name}`", f"{one.value:,.0f} {one.unit}", f"{one.ratio:.2f} of {one.baseline}", one.goal]
        for name, one in pictures.items()
    ]
    core = next(iter(found.values()))["core"]
    page = ABOUT.format(machine=machine(), **core) + table(COLUMNS, rows) + "\n" + table(PICTURES, told)
    written = {
        "command": "make campaign",
        "machine": machine(),
        "edge": [{"command": f"cutlayer edge recipes/{name} --json", **one} for name, one in found.items()],
        "stream": [{"command": f"cutlayer bench {name} --json", **one._asdict()} for name, one in pictures.items()],
    }
    (EVIDENCE / "edge.json").write_text(json.dumps(written, indent=1) + "\n")
    (EVIDENCE / "edge.md").write_text(page)

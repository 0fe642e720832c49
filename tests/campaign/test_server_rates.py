"""How much each rule minds its server rate: the rules alone, on skewed shares of MNIST-5000. Recorded."""

import json
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import nn

from cutlayer.data import Digits
from cutlayer.data.partitions import Dirichlet
from cutlayer.rules import DiLoCo, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMuon, FedYogi, Update

pytestmark = pytest.mark.campaign
RECORD = Path(__file__).parents[2] / "docs" / "evidence" / "server-rates.json"
RULES = (FedAvg, FedAvgM, DiLoCo, FedAdagrad, FedAdam, FedYogi, FedMuon)
FACTORS, SEEDS = (0.1, 0.3, 1.0, 3.0, 10.0), (0, 1, 2)
CLIENTS, ALPHA, STEPS, ROUNDS, BATCH = 10, 0.1, 5, 30, 64
CLIENT_LR, CLIENT_MOMENTUM = 0.015, 0.85  # of the thesis


def accuracy(rule, seed):
    """Of a small network on held-out digits, after rounds of a few local steps each."""
    loaded = Digits().load()
    shares = Dirichlet(ALPHA).assign(loaded.train, CLIENTS, seed)
    x, y = loaded.train.images(torch.arange(len(loaded.train))).flatten(1), loaded.train.y
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    now = {f"net.{name}": p.detach().clone() for name, p in model.named_parameters()}
    draw = torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        came = []
        for rows in shares:
            model.load_state_dict({name[4:]: t for name, t in now.items() if name.startswith("net.")})
            optimizer = torch.optim.SGD(model.parameters(), CLIENT_LR, CLIENT_MOMENTUM)
            for _ in range(STEPS):
                batch = rows[torch.randint(len(rows), (min(BATCH, len(rows)),), generator=draw)]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            came.append(
                Update({f"net.{name}": p.detach().clone() for name, p in model.named_parameters()}, len(rows))
            )
        now = rule(now, came)
    model.load_state_dict({name[4:]: t for name, t in now.items() if name.startswith("net.")})
    test = loaded.test
    right = model(test.images(torch.arange(len(test))).flatten(1)).argmax(1) == test.y
    return float(right.float().mean())


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_accuracy_by_server_rate(kind):
    torch.set_num_threads(1)
    usual = kind().lr
    rates = [float(f"{factor * usual:.2g}") for factor in FACTORS]
    rows = [{"lr": lr, "accuracy": [round(accuracy(kind(lr=lr), seed), 4) for seed in SEEDS]} for lr in rates]
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found[kind.__name__] = {
        "command": f"python -m pytest -m campaign tests/campaign/test_server_rates.py -k {kind.__name__}",
        "setting": f"MNIST-5000, Linear(784, 64)-ReLU-Linear(64, 10), {CLIENTS} clients, Dirichlet({ALPHA}), "
        f"{ROUNDS} rounds of {STEPS} steps of {BATCH}, client SGD(lr={CLIENT_LR}, momentum={CLIENT_MOMENTUM}), "
        f"seeds {SEEDS}",
        "rows": rows,
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    assert max(mean(row["accuracy"]) for row in rows) > 0.5, "no rate of five learns anything"

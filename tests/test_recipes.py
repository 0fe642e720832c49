"""Every recipe gives a plan that fits its data, and one of them runs from the command line to a result."""

import inspect
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import pytest

from cutlayer.cli.demo import demo_guards, demo_plan
from cutlayer.data import (
    CIFAR10,
    CIFAR100,
    COCO,
    GTSRB,
    IMDB,
    MNIST,
    SVHN,
    VOC,
    CelebA,
    Digits,
    FairFace,
    Fashion,
    FashionMNIST,
    ImageNet,
    MNISTRows,
    Reviews,
    Scenes,
    TinyImageNet,
    UTKFace,
)
from cutlayer.data.base import Source, parts
from cutlayer.data.partitions import IID
from cutlayer.engines.local.run import LocalRun
from cutlayer.nets import count_parameters
from cutlayer.rules import FedAvg
from cutlayer.training.build import build_client, build_server
from cutlayer.training.facts.privacy import privacy
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.roles import Role
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import UShaped, Vanilla

ROOT = Path(__file__).parents[1]

# The shapes are known without the files, so recipes are checked where the data is not.
TASKS: dict[type[Source], Task] = {
    Digits: Task((1, 28, 28), 10),
    Fashion: Task((1, 28, 28), 10),
    MNIST: Task((1, 28, 28), 10),
    MNISTRows: Task((28, 28), 10),
    FashionMNIST: Task((1, 28, 28), 10),
    CIFAR10: Task((3, 32, 32), 10, {"living": 2}),
    CIFAR100: Task((3, 32, 32), 100),
    GTSRB: Task((3, 32, 32), 43),
    SVHN: Task((3, 32, 32), 10),
    CelebA: Task((3, 64, 64), 2, {"Male": 2}),
    FairFace: Task((3, 64, 64), 2, {"gender": 2, "race": 7, "age": 9}),
    UTKFace: Task((3, 64, 64), 2, {"gender": 2, "race": 5, "age": 117}),
    TinyImageNet: Task((3, 32, 32), 200),
    Reviews: Task((2048,), 2),
    Scenes: Task((3, 64, 64), 11),
    ImageNet: Task((3, 224, 224), 1000),
    COCO: Task((3, 513, 513), 21),
    VOC: Task((3, 513, 513), 21),
}


def functions(file: Path) -> dict[str, Callable[[], Plan]]:
    """The public functions written in a recipe file, loaded as the command line loads it."""
    made = runpy.run_path(str(file))
    return {
        name: thing
        for name, thing in made.items()
        if inspect.isfunction(thing) and thing.__module__ == "<run_path>" and not name.startswith("_")
    }


RECIPES = {
    f"{file.name}:{name}": recipe
    for file in sorted((ROOT / "recipes").glob("*.py"))
    for name, recipe in functions(file).items()
}


def plan_of(name: str) -> Plan:
    return RECIPES[name]()


def task_of(plan: Plan) -> Task:
    if isinstance(plan.data, IMDB):
        words = plan.data.vocabulary
        return Task((plan.data.length,), words if plan.data.next_token else 2, vocabulary=words)
    if isinstance(plan.data, CelebA) and isinstance(plan.data.size, tuple):
        return TASKS[CelebA]._replace(shape=(3, *plan.data.size))
    return TASKS[type(plan.data)]


def test_there_are_recipes_of_every_file():
    files = {name.partition(":")[0] for name in RECIPES}
    assert files == {
        "baselines.py",
        "digits.py",
        "faces.py",
        "fashion.py",
        "fedmuon.py",
        "gate.py",
        "imdb.py",
        "kd_ufsl.py",
        "lfq.py",
        "lightsplit.py",
        "own_model.py",
        "prism.py",
        "seal.py",
        "segmentation.py",
        "sl_fc.py",
        "split_inference.py",
    }


@cache
def first_of_its_network() -> set[str]:
    """One recipe for each network and protocol: the parties of the others differ in their guards alone."""
    found: dict[tuple[str, str], str] = {}
    for name in RECIPES:
        if name.startswith("faces.py"):  # a campaign's
            continue
        plan = plan_of(name)
        found.setdefault((repr(plan.net), repr(plan.protocol)), name)
    return set(found.values())


# Those on faces are many and alike: test_recipes_run.py trains some of them.
FITTED = [pytest.param(name, marks=pytest.mark.campaign) if name.startswith("faces.py") else name for name in RECIPES]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FITTED)
def test_a_recipe_is_a_plan_that_fits_its_data(name):
    plan = plan_of(name)
    assert isinstance(plan, Plan)
    cut = cut_shapes(plan, task_of(plan))
    if name not in first_of_its_network() and not name.startswith("faces.py"):
        plan.guard.build(cut.shared, 1, 2, task_of(plan))
        plan.guard.public_part().lift(cut.shared, 1)
        return
    # Both sides can be built, and what the body gives is what the tail reads.
    server = build_server(plan.public(), task_of(plan))
    client = build_client(plan.with_secrets(), task_of(plan), 0, server.handle)
    assert all(side > 0 for shape in (cut.z, cut.shared, cut.sent, cut.u) for side in shape)
    assert count_parameters(client.split) > 0
    assert (count_parameters(server.body) > 0) == plan.protocol.crosses


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is(name):
    assert RECIPES[name].__doc__


@pytest.mark.parametrize(
    ("name", "z", "sent"),
    [
        ("fashion_mnist", (20, 12, 12), (20, 12, 12)),
        ("fashion_mnist_f", (20, 12, 12), (360,)),
        ("fashion_mnist_l", (20, 12, 12), (360,)),
        ("fashion_mnist_1x1", (20, 12, 12), (2, 12, 12)),
        ("cifar10", (64, 8, 8), (64, 8, 8)),
        ("cifar10_f", (64, 8, 8), (512,)),
        ("cifar10_l", (64, 8, 8), (512,)),
        ("cifar10_1x1", (64, 8, 8), (8, 8, 8)),
        ("cifar100_l", (64, 8, 8), (512,)),
        ("gtsrb_f", (29, 14, 14), (710,)),
        ("gtsrb_1x1", (29, 14, 14), (3, 14, 14)),
        ("unsplit_cut2", (8, 12, 12), (8, 12, 12)),
        ("unsplit_cut2_f", (8, 12, 12), (144,)),
        ("unsplit_cut2_wcc", (8, 12, 12), (144,)),
        ("unsplit_cut4", (16, 8, 8), (16, 8, 8)),
        ("unsplit_cut4_f", (16, 8, 8), (128,)),
    ],
)
def test_lightsplit_cuts_and_widths_are_the_papers(name, z, sent):
    """Tables II and IX; App. A-C gives k = 144 and 128."""
    plan = plan_of(f"lightsplit.py:{name}")
    cut = cut_shapes(plan, task_of(plan))
    assert (cut.z, cut.sent) == (z, sent)


@pytest.mark.parametrize(("name", "parameters"), [("fashion_mnist_l", 417_984), ("cifar10_l", 2_364_928)])
def test_the_learned_lift_has_the_parameters_of_table_ii(name, parameters):
    plan = plan_of(f"lightsplit.py:{name}")
    body = build_server(plan.public(), task_of(plan)).body
    assert count_parameters(body.lift) == parameters


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("lightsplit.py:unsplit")])
def test_unsplits_victims_train_as_app_a_c_says(name):
    plan = plan_of(name)
    for optimizer in (plan.client_optimizer, plan.server_optimizer):
        assert repr(optimizer) == "Adam(amsgrad=True)"
        assert optimizer.lr == 1e-3
    assert (plan.epochs, plan.batch_size, plan.clients) == (20, 64, 1)


@pytest.mark.parametrize(
    ("name", "z", "sent"),
    [
        ("mnist_seal", (64, 7, 7), (64, 7, 7)),
        ("mnist_dct", (64, 7, 7), (64, 49)),
        ("cifar10_seal", (64, 8, 8), (64, 8, 8)),
        ("tiny_imagenet_seal", (64, 8, 8), (64, 8, 8)),
        ("reviews_1", (64,), (64,)),
    ],
)
def test_seal_cuts_after_the_stem(name, z, sent):
    plan = plan_of(f"seal.py:{name}")
    cut = cut_shapes(plan, task_of(plan))
    assert (cut.z, cut.sent) == (z, sent)


def test_seals_sides_have_the_parameters_of_table_4():
    """67,039,140 in all are for 100 classes; with the classifier on the server the client has the stem's 9,536."""
    plan, task = plan_of("seal.py:cifar10_seal"), Task((3, 32, 32), 100)
    server = build_server(plan.public(), task)
    client = build_client(plan.with_secrets(), task, 0, server.handle)
    assert (count_parameters(client.split), count_parameters(server.body)) == (9_536, 67_029_604)


def test_as_many_clients_use_seal_as_in_table_1():
    plans = {name: recipe() for name, recipe in RECIPES.items() if name.startswith("seal.py:reviews_")}
    assert sorted(plan.guarded_clients or 0 for plan in plans.values()) == [1, 2, 5, 7, 10]
    assert {(plan.clients, repr(plan.guard)) for plan in plans.values()} == {(10, "SEAL(energy=0.7)")}


def test_baselines_have_the_cuts_and_settings_of_their_papers():
    """FORA, Table 7, and the thesis on PRISM, Sec. 3.4.1."""
    plans = {name.partition(":")[2]: plan_of(name) for name in RECIPES if name.startswith("baselines.py:")}
    for name, plan in plans.items():
        first = "prism" if name.startswith("prism") or name.endswith("living") else "fora"
        assert cut_shapes(plan, task_of(plan)).z == {"fora": (64, 16, 16), "prism": (128, 16, 16)}[first]
        assert not plan.protocol.labels_stay_home
    assert [plans[f"fora_nopeek_{n}"].guard.alpha for n in (2, 5, 8)] == [0.2, 0.5, 0.8]
    assert [plans[f"fora_noise_{n}"].guard.scale for n in (1, 2, 5)] == [1, 2, 5]
    assert [plans[f"prism_disco_{n}"].guard.patches for n in ("off", "8")] == [None, 8]
    assert repr(plans["prism"].client_optimizer) == "SGD(lr=0.015, weight_decay=0.0001)"


def test_kd_ufsl_groups_by_five_and_claims_an_epsilon_for_its_formal_setting_alone():
    plans = {name.partition(":")[2]: plan_of(name) for name in RECIPES if name.startswith("kd_ufsl.py:")}
    assert {plan.guard.least_batch for plan in plans.values()} == {5}
    ledgers = {name: privacy(plan, task_of(plan)) for name, plan in plans.items()}
    assert [name for name, ledger in ledgers.items() if ledger["epsilon"]] == ["mnist_formal"]
    formal = ledgers["mnist_formal"]["epsilon"]
    assert formal["release"] == pytest.approx(8) and formal["epochs"] == 20
    # Twenty Gaussians of one multiplier are one of that multiplier over the root of twenty: 58.74 in closed form.
    assert formal["total"] is None or formal["total"] == pytest.approx(58.74, abs=0.05)


def test_kd_ufsl_is_federated_and_u_shaped():
    plan = plan_of("kd_ufsl.py:mnist")
    assert plan.rounds == SplitFed(version=1) and plan.rule == FedAvg() and plan.protocol == UShaped()
    assert plan_of("kd_ufsl.py:digits").guard == plan.guard and plan_of("kd_ufsl.py:digits").rounds == plan.rounds
    assert plan_of("kd_ufsl.py:mnist_relay").rounds == Relay()


def test_sl_fc_is_set_up_as_in_the_thesis():
    """Sec. 4.4.1: 10 clients, labels at the server, Nesterov momentum 0.85, a cosine from 0.015 down to 1e-5."""
    plans = {name.partition(":")[2]: plan_of(name) for name in RECIPES if name.startswith("sl_fc.py:")}
    for name, plan in plans.items():
        assert (plan.clients, plan.protocol) == (10, Vanilla())
        assert (
            plan.client_optimizer
            == plan.server_optimizer
            == SGD(lr=0.015, momentum=0.85, weight_decay=1e-4, nesterov=True)
        )
        assert plan.schedule.floor * 0.015 == pytest.approx(1e-5)
        roles = plan.roles.at(0, 10, 0)
        kept = {"cifar10_all": (10, 0, 0), "cifar10_discarded": (5, 0, 5)}.get(name, (5, 5, 0))
        assert tuple(roles.count(role) for role in (Role.ACTIVE, Role.FROZEN, Role.OUT)) == kept
    big = plans["cifar10"]
    assert (cut_shapes(big, task_of(big)).z, big.epochs, big.local_steps) == ((128, 16, 16), 50, 1)
    assert [plans[f"cifar10_k{k}"].local_steps for k in (5, 25)] == [5, 25]
    assert (plans["cifar10_wave"].rounds.weights, plans["cifar10_skewed"].partition.alpha) == ("even", 0.3)


def test_fedmuon_has_the_rates_of_table_5_2():
    plans = {name.partition(":")[2]: plan_of(name) for name in RECIPES if name.startswith("fedmuon.py:")}
    for name, plan in plans.items():
        shares = "Dirichlet(alpha=0.1, minimum=4500, refill=True)" if "_full" in name else "Dirichlet(alpha=0.1)"
        assert (plan.clients, repr(plan.partition), plan.clients_per_round) == (10, shares, None)
        assert (plan.client_optimizer.lr, plan.client_optimizer.momentum) == (0.015, 0.85)
    rules = {"cifar10": "FedMuon", "avgm": "FedAvgM", "adagrad": "FedAdagrad", "adam": "FedAdam", "yogi": "FedYogi"}
    rates = {"cifar10": 0.05, "avgm": 0.3, "adagrad": 0.007, "adam": 0.003, "yogi": 0.002}
    for name, rule in rules.items():
        plan = plans[name if name == "cifar10" else f"cifar10_{name}"]
        assert (type(plan.rule).__name__, plan.rule.lr, plan.local_steps, plan.epochs) == (rule, rates[name], 5, 30)
    assert plans["cifar10_avg"].rule == FedAvg()
    late = {name: (plans[name].local_steps, plans[name].rule.lr) for name in plans if name.endswith(("_k1", "_k25"))}
    assert late == {
        "cifar10_k1": (1, 0.05), "cifar10_k25": (25, 0.05), "cifar10_adagrad_k25": (25, 0.03),
        "cifar10_yogi_k25": (25, 0.003),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["sl_fc.py:digits", "fedmuon.py:digits", "kd_ufsl.py:digits"])
def test_the_small_ones_learn(name):
    """The settings of the papers, on less of the digits."""
    smaller = {"data": Digits(limit=300), "epochs": 3, "clients": 3, "partition": IID(), "batch_size": 20}
    plan = replace(plan_of(name), **smaller, private_seed=0)
    run = LocalRun(plan, parts(plan.data.load(), aux=0, val=0, seed=0), classes=10)
    assert run.train()
    first, *_, last = (row["task"] for row in run.progress.history)
    assert last < 0.99 * first
    assert not run.coordinator.rejected


@pytest.mark.parametrize(
    ("name", "z", "epochs", "keep"),
    [
        ("prism.py:cifar10", (128, 16, 16), 50, 0.1),
        ("prism.py:cifar10_75", (128, 16, 16), 50, 0.25),
        ("prism.py:cifar10_54", (128, 16, 16), 50, 0.46),
        ("faces.py:prism_celeba", (128, 8, 8), 10, 0.1),
        ("faces.py:prism_fairface", (128, 8, 8), 10, 0.1),
    ],
)
def test_prism_is_cut_and_trained_as_in_the_thesis(name, z, epochs, keep):
    plan = plan_of(name)
    cut = cut_shapes(plan, task_of(plan))
    assert (cut.z, cut.shared, cut.sent, cut.u) == (z, z, z, (512,))
    assert (plan.epochs, plan.batch_size, plan.guard.keep, plan.protocol.fusion) == (epochs, 128, keep, "hybrid")
    assert plan.guard.privacy == "adversary"
    for optimizer in (plan.client_optimizer, plan.server_optimizer):
        assert repr(optimizer) == "SGD(lr=0.015, weight_decay=0.0001)"
        assert optimizer.momentum == 0.9


@pytest.mark.parametrize(("name", "bits"), [("mnist_lfq_1", 72), ("digits_lfq", 81)])
def test_lfq_has_the_cut_of_the_thesis_and_near_its_rates(name, bits):
    """Client and server of 4,800 and 148,874 parameters, d = 1152; 76 and 84 bits with the decoder in them."""
    plan, bare = plan_of(f"lfq.py:{name}"), plan_of("lfq.py:mnist")
    cut = cut_shapes(plan, task_of(plan))
    assert (cut.z, plan.guard.bits_of_a_sample(cut.z)) == ((32, 6, 6), bits)
    assert 32 * 1152 / bits > 400
    server = build_server(bare.public(), task_of(bare))
    client = build_client(bare.with_secrets(), task_of(bare), 0, server.handle)
    assert (count_parameters(client.split), count_parameters(server.body)) == (4_800, 148_874)
    assert (bare.clients, repr(bare.partition), bare.batch_size, bare.epochs) == (30, "Labels(m=2)", 256, 200)


@pytest.mark.parametrize(
    ("name", "cut", "bits", "rate"),
    [
        ("imagenet_lfq", (2048, 7, 7), 26 * 16, 0.008),
        ("imagenet_lfq_most", (2048, 7, 7), 195 * 16, 0.062),
        ("coco_lfq", (2048, 65, 65), 15 * 33 * 33, 0.062),
    ],
)
def test_split_inference_has_the_cuts_of_the_thesis_and_near_its_rates(name, cut, bits, rate):
    plan = plan_of(f"split_inference.py:{name}")
    task = task_of(plan)
    shapes = cut_shapes(plan, task)
    assert shapes.z == cut and prod(shapes.sent) == bits
    assert bits / prod(task.shape[1:]) == pytest.approx(rate, rel=0.05)


def test_the_demos_plan_is_a_recipe_too():
    assert plan_of("fashion.py:demo") == demo_plan()
    assert plan_of("fashion.py:guarded").guard in demo_guards()


def test_a_recipe_runs_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "cutlayer.cli", "train", "recipes/fashion.py:quick", "--out", str(out)]
    done = subprocess.run(
        [*command, "--threads", "1", "--json"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["plan"] == repr(plan_of("fashion.py:quick"))
    assert result["accuracy"] > 0.3, "a tenth would be chance"
    assert json.loads((out / "result.json").read_text())["accuracy"] == result["accuracy"]
    assert {file.name for file in out.iterdir()} >= {"plan.json", "private.json", "history.jsonl", "last.safetensors"}

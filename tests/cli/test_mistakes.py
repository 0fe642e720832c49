"""Typical mistakes: each is answered in one sentence with the way out, never by a traceback."""

import contextlib
import os
import re
import shlex
import signal
import sys

import numpy as np
import pytest

from cutlayer import Plan
from cutlayer.cli import app as cli
from cutlayer.data import Fashion
from cutlayer.engines.folder import write_plan

RECIPES = {
    "syntax": "def plan(:\n",
    "raises": "from cutlayer import Plan\ndef plan():\n    return Plan(epochs=1 // 0)\n",
    "imports": "import nosuchmodule\n",
    "wrong": "def plan():\n    return 3\n",
    "asks": "from cutlayer import Plan\ndef plan(size):\n    return Plan()\n",
    "name": "from cutlayer import Plan\ndef plan():\n    return Plan(net=SimpleCNN())\n",
    "model": "from torch.nn import Linear, Sequential\ndef Net():\n    return Sequential(Linear(3, 4), Linear(4, 2))",
    "exits": "import sys\ndef plan():\n    sys.exit(3)\n",
    "value": "from cutlayer import Plan\nplan = Plan()\n",
    "module": """from torch import nn
class Small(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, width)
    def forward(self, x):
        return self.last(self.second(self.first(x.flatten(1))))
class Wide(Small):
    def __init__(self, width):
        super().__init__(width)
small = Small()
""",
    "guards": """from dataclasses import dataclass
from cutlayer.guards import Guard, Guarded, GuardModule
@dataclass(frozen=True, repr=False)
class Bare(Guard):
    pass
@dataclass(frozen=True, repr=False)
class Mute(Guard):
    def build(self, shape, public, private, task=None):
        pass
class Sends(GuardModule):
    def __init__(self, line):
        super().__init__()
        self.line, self.steps = line, 0
    def forward(self, z, batch):
        self.steps += 1
        return self.line(z, self.steps)
@dataclass(frozen=True, repr=False)
class Endless(Guard):
    def build(self, shape, public, private, task=None):
        return Sends(lambda z, step: Guarded(z * float("nan")))
@dataclass(frozen=True, repr=False)
class Tired(Guard):
    def build(self, shape, public, private, task=None):
        return Sends(lambda z, step: Guarded(z) if step < 2 else {}["no more\\nsteps"])
@dataclass(frozen=True, repr=False)
class Quitter(Guard):
    after: int = 0
    def build(self, shape, public, private, task=None):
        return Sends(lambda z, step: Guarded(z * 0.5) if step <= self.after else raise_(SystemExit()))
def raise_(error):
    raise error
""",
}

# What is typed, and a part of the answer: what was wrong, or the way out.
MISTAKES = [
    # names
    ("trian", "No such command 'trian'"),
    ("train --epoch 3", "--epochs"),
    ("train --guard LightSplitt", "did you mean LightSplit"),
    ("train --guard Decoder", "there is no 'Decoder' among the guards"),
    ("train --net SimpelCNN", "did you mean SimpleCNN"),
    ("train --data Fashon", "did you mean Fashion"),
    ("train --partition Dirichelt", "did you mean Dirichlet"),
    ("train --protocol Ushaped", "did you mean UShaped"),
    ("train --rounds Splitfed", "did you mean SplitFed"),
    ("train --rule FedAvgg", "did you mean FedAvg"),
    ("train --client-optimizer Adm", "did you mean Adam"),
    ("train --client-detectors GradientScrutiniser", "did you mean GradientScrutinizer"),
    ("train --poison BadNet", "did you mean BadNets"),
    ("train --track tensorbord", "tensorboard, mlflow, wandb"),
    ("audit --attack Decodr", "did you mean Decoder"),
    ("audit --secrets pictures", "images"),
    ("audit --budget huge", "quick, standard, paper"),
    ("list gards", "there is guards"),
    ("new fashon", "did you mean fashion"),
    ("bench nosuch", "guard.lightsplit"),
    # values and the form of specs
    ("train --epochs three", "Invalid value for '--epochs'"),
    ("train --epochs -1", "epochs is a whole number from 0 up"),
    ("train --batch-size 0", "batch_size is a whole number from 2 up"),
    ("train --clients 0", "clients is a whole number from 1 up"),
    ("train --val-share 2", "in [0, 1)"),
    ("train --threads 0", "--threads is a whole number from 1 up"),
    ("train --record -1", "--record is how many MiB to keep"),
    ("costs --steps 0", "--steps is a whole number from 1 up"),
    ("train --link fast", "written like 20mbit,40ms"),
    ("train --partition 'Dirichlet(alpha=-1)'", "alpha is how even the shares are"),
    ("train --guard 'LightSplit(ratios=8)'", "did you mean 'ratio'"),
    ("train --guard 'LightSplit(ratio=8'", "Name(argument=value)"),
    ("train 'Plan(epoch=3)'", "did you mean 'epochs'"),
    ("train --data Npz", "Npz takes path"),
    ("audit --images 1", "--images at least 2"),
    ("audit --data 'Fashion(limit=60)' --epochs 0", "give --epochs 1 or more"),
    ("audit --guard 'Quantize(bits={})'", "braces with nothing in them"),
    ("sweep --guard 'Quantize(bits={1,99})'", "from 1 to 16"),
    ("layers MnistNet --input 1,x", "whole numbers with commas"),
    ("compare", "two variants or more"),
    ("compare --with rule", "write field=value"),
    # nothing, and twice the same
    ("train --data ''", "--data has nothing behind it"),
    ("audit --secrets=", "--secrets has nothing behind it"),
    ("audit --aux-data '' --budget ''", "--aux-data has nothing behind it"),
    ("audit --secrets ,", "--secrets names what the verdict goes by"),
    ("compare --with plan --with epochs=2 --with ' ; '", "';': write field=value"),
    ("compare --with plan --with frozen_parts=head,head", "frozen_parts has 'head' twice"),
    ("train --client-detectors LeakMeter --client-detectors LeakMeter", "client_detectors has LeakMeter() twice"),
    ("serve 'Plan(clients=2)' --insecure --listen 127.0.0.1:0 --client a --client b,c", "a name is 1 to 64 letters"),
    (
        "serve 'Plan()' --insecure --listen 127.0.0.1:0 --versions torch=minor --versions torch=any",
        "--versions names torch twice",
    ),
    # data that is missing, or of another shape
    ("train --data MNIST", "--data-dir"),
    ("train --data \"Npz(path='gone.npz')\"", "name the file by its path from here"),
    ("train --data \"Npz(path='text.npz')\"", "not an .npz archive"),
    ("train --data \"Npz(path='keys.npz')\"", "it has no array 'x'"),
    ("train --data \"Npz(path='objects.npz')\"", "write arrays of numbers"),
    ("train --data \"Npz(path='short.npz')\"", "one label for every sample"),
    ("train --data \"Npz(path='one.npy')\"", "numpy.savez"),
    ("train --data \"Table(path='empty.csv', target='y')\"", "a header and at least one row"),
    ("train --data \"Table(path='a.csv', target='rsk')\"", "did you mean 'risk'"),
    ("train --data \"ImageFolder(path='empty')\"", "put the pictures of each class"),
    ("train --data 'Fashion(limit=99999)'", "lower it"),
    ("data check gone", "there is no folder gone"),
    # networks
    ("train --net \"Own('model.py:Net', at='0')\"", "cannot take inputs of shape"),
    ("train --net \"Own('model.py:Nett', at='0')\"", "it has Net"),
    ("train --net \"Own('model.py:Net', at='stem')\"", "its children are"),
    ("train --net \"Own('gone.py:Net', at='0')\"", "looked in"),
    ("train --start gone.pt", "name a file that is there"),
    ("memory --net 'SimpleCNN(depth=99)'", "depth is 1 or 2"),
    ("memory --data 'Fashion(limit=60)' --batch-size 1000000000000", "lower --batch-size"),
    # recipes
    ("train gone.py:plan", "`cutlayer new` lists"),
    ("train syntax.py:plan", "line 1: SyntaxError"),
    ("train raises.py:plan", "line 3: ZeroDivisionError"),
    ("train imports.py:plan", "No module named 'nosuchmodule'"),
    ("train wrong.py:plan", "a recipe returns a Plan"),
    ("train asks.py:plan", "missing 1 required positional argument"),
    ("train name.py:plan", "line 3: NameError"),
    ("train name.py", "it has name.py:plan"),
    # files and folders where a spec is asked for
    ("train --data keys.npz", "a file of your own is Npz('keys.npz')"),
    ("train --data a.csv", "Table('a.csv', target='COLUMN')"),
    ("train --data empty", "a folder of pictures is ImageFolder('empty', size=32)"),
    ('train --data "Npz(keys.npz)"', "stands in quotes, 'keys.npz'"),
    ("train full", "full is a folder, and a plan is FILE.py:FUNCTION"),
    ("train value", "named with its ending, value.py:FUNCTION"),
    ("train value.py:plan", "write def plan(): return Plan(...)"),
    ("train exits.py:plan", "line 3: SystemExit: 3"),
    ("train --guard guards.py", "guards.py:Bare, guards.py:Mute, "),
    ("check guards.py", "guards.py:Bare, guards.py:Mute, "),
    ("layers module.py", "module.py:Small, module.py:Wide"),
    # a model, labels, series and a guard of one's own
    ("train --net module.py:Small", "Own('module.py:Small', at='LAYER', back='LAYER')"),
    ("train --net \"Own(module.py:Small, at='first')\"", "Own('module.py:Small', at='LAYER', back='LAYER')"),
    ("train --data \"Npz('rows.npz')\" --net \"Own('module.py:Wide', at='first')\"", "'my.py:Model(width=8)'"),
    ("train --data \"Npz('rows.npz')\" --net \"Own('module.py:small', at='first')\"", "name a class or a function"),
    (
        "train --data \"Npz('rows.npz')\" --net \"Own('module.py:Small', at='second', back='first')\"",
        "`cutlayer layers` lists where it can be cut",
    ),
    ("train --data \"Npz('rows.npz')\" --net \"Own('module.py:Small', at='last')\"", "`cutlayer layers` lists"),
    ("train --data \"Npz('onehot.npz')\"", "y.argmax(1)"),
    ("train --data \"Npz('nolabels.npz')\"", "only `cutlayer predict` takes samples without labels"),
    ("train --data \"Npz('series.npz')\"", "Npz(..., signals=True)"),
    ("train --data 'Fashion(limit=60)' --guard guards.py:Bare", "needs build(self, shape"),
    ("train --data 'Fashion(limit=60)' --guard guards.py:Mute", "return the client's module, a GuardModule"),
    ("train --data 'Fashion(limit=60)' --guard guards.py:Endless", "holds NaN or infinity"),
    # what other programs call otherwise
    ("train --lr 0.01", "here it is --client-optimizer 'Adam(lr=0.001)'"),
    ("train --model ResNet18", "here it is --net"),
    ("audit --gpu", "here it is --device cuda"),
    ("audit --attack all", "--budget quick tries every attack"),
    ("serve 'Plan()' --listen localhost:99999 --insecure", "a port from 0 to 65535"),
    ("serve 'Plan()' --listen 127.0.0.1:0 --insecure --deadline inf", "--deadline is above 0 and at most 10000000"),
    ("serve 'Plan()' --listen 127.0.0.1:0 --insecure --deadline nan", "--deadline is above 0 and at most 10000000"),
    ("serve 'Plan()' --listen 127.0.0.1:0 --insecure --stalled-after nan", "--stalled-after is how many times"),
    ("join 'Plan()' localhost:1 --as a --insecure --give-up nan", "--give-up is 0 or more"),
    ("join 'Plan()' localhost:1 --as a --insecure --silence 0", "--silence above 0"),
    ("join 'Plan()' localhost:1 --as a --insecure --max-message 0", "--max-message at least 1"),
    # folders
    ("serve 'Plan()' --listen 127.0.0.1:0 --insecure --out a.csv", "a.csv is a file, and results go into a folder"),
    ("join 'Plan()' localhost:1 --as a --insecure --out a.csv", "a.csv is a file, and results go into a folder"),
    ("train --out full", "choose another --out"),
    ("train --out a.csv", "a.csv is a file, and results go into a folder: choose another --out"),
    ("audit --out a.csv/deeper", "a.csv is a file, and results go into a folder"),
    ("memory --out full", "choose another --out"),
    ("costs --out a.csv", "a.csv is a file"),
    ("train --resume listed", "command.json is damaged"),
    ("train --resume halved", "plan.json is damaged, and halved cannot go on without it"),
    ("audit --resume damaged", "command.json is damaged"),
    ("compare --resume listed", "command.json is damaged"),
    ("train --resume a.csv", "there is no folder a.csv"),
    ("audit --resume full --out new", "leave out --out"),
    ("train --resume full", "there is no plan.json in it"),
    ("train --resume gone", "there is no folder gone"),
    ("audit --resume full", "was not begun by `cutlayer audit`"),
    ("attack gone", "there is no folder gone (looked for"),
    ("predict gone", "name that of a run"),
    ("predict full --out full", "--out is a CSV file: name one, such as full/predictions.csv"),
    ("predict full --out gone/found.csv", "there is no folder gone for found.csv"),
    ("train --resume begun --epochs 5", "another plan (epochs was 0, now 5)"),
    # the machine, and what is not installed
    ("train --device gpu", "--device is cpu or cuda"),
    ("train --engine spark", "--engine is local"),
    ("join 'Plan()' far.example.org:1 --as a --insecure", "`cutlayer certs`"),
    ("serve 'Plan()' --listen 0.0.0.0:0", "give --certs FOLDER"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder as a person's may look, with files that are wrong in the usual ways."""
    folder = tmp_path_factory.mktemp("desk")
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    np.savez(folder / "keys.npz", a=images)
    np.savez(folder / "objects.npz", x=np.array([{}, 1], dtype=object), y=labels[:2])
    np.savez(folder / "short.npz", x=images, y=labels[:30])
    np.save(folder / "one.npy", images)
    (folder / "text.npz").write_text("hello")
    np.savez(folder / "rows.npz", x=np.random.default_rng(0).random((40, 3), dtype=np.float32), y=labels % 2)
    np.savez(folder / "onehot.npz", x=images, y=np.eye(4)[labels])
    np.savez(folder / "nolabels.npz", x=images)
    np.savez(folder / "series.npz", x=np.full((40, 1, 32), -1.5, np.float32), y=labels)
    (folder / "empty.csv").write_text("")
    (folder / "a.csv").write_text("age,risk\n1,0\n2,1\n")
    (folder / "empty").mkdir()
    (folder / "full").mkdir()
    (folder / "full" / "note.txt").write_text("mine")
    (folder / "begun").mkdir()
    write_plan(Plan(data=Fashion(limit=60), epochs=0, private_seed=1), folder / "begun", "")
    (folder / "begun" / "private.json").write_text('{"private_seed": 1}')
    for name, plan, typed in (("damaged", '{"plan": "Plan(', '{"command": "audit"'), ("listed", "[]", "[]")):
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(plan)
        (folder / name / "command.json").write_text(typed)
    (folder / "halved").mkdir()
    (folder / "halved" / "plan.json").write_text("[]")
    for name, text in RECIPES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def at_desk(desk, monkeypatch):
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    monkeypatch.chdir(desk)


@pytest.mark.usefixtures("at_desk")
@pytest.mark.parametrize(("typed", "said"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_a_mistake_is_one_sentence_with_the_way_out(command, desk, typed, said):
    before = set(os.listdir(desk))
    code, out, err = command(*shlex.split(typed))
    assert code in (1, 2) and out == ""
    assert said in err and "Traceback" not in err
    assert err.startswith("error: ") and err.count("\n") == 1, "one sentence on one line"
    assert "allow_pickle" not in err
    assert set(os.listdir(desk)) - before <= {"__pycache__"}, "nothing is left behind"


@pytest.mark.parametrize("after", [0, 3])
def test_a_guard_that_exits_ends_no_training_without_a_sentence(command, at_desk, tmp_path, after):
    """`sys.exit()` in somebody's forward ended any command with code 0."""
    typed = f"train --data 'Fashion(limit=60)' --epochs 3 --batch-size 16 --guard 'guards.py:Quitter(after={after})'"
    code, _, err = command(*shlex.split(typed), "--out", tmp_path / "run")
    assert code == 1 and "SystemExit" in err and "guards.py" in err and err.splitlines()[-1].startswith("error: ")


def test_check_says_that_a_guard_exits(command, at_desk):
    code, out, _ = command("check", "guards.py:Quitter")
    assert code == 1 and "laws are broken" in out and "SystemExit" in out


def test_an_error_in_a_file_of_ones_own_is_its_line(command, desk, at_desk, tmp_path):
    typed = "train --data 'Fashion(limit=60)' --epochs 1 --batch-size 16 --guard guards.py:Tired"
    code, _, err = command(*shlex.split(typed), "--out", tmp_path / "run")
    assert code == 1 and "Traceback" not in err
    assert re.search(r"^error: .*guards\.py, line \d+: KeyError: ", err, re.MULTILINE)


@pytest.mark.usefixtures("at_desk")
@pytest.mark.parametrize(
    ("package", "typed", "extra"),
    [
        ("grpc", "serve 'Plan()' --listen 127.0.0.1:0 --insecure", "deploy"),
        ("grpc", "join 'Plan()' 127.0.0.1:1 --as a --insecure", "deploy"),
        ("tensorboard", "train --track tensorboard", "tensorboard"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(command, monkeypatch, package, typed, extra):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("cutlayer.engines.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = command(*shlex.split(typed))
    assert code == 1 and f"pip install 'cutlayer[{extra}]'" in err and err.count("\n") == 1


def test_without_a_gpu_one_hears_how_to_do_without(command, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = command("train", "--device", "cuda")
    assert code == 1 and "leave the option out to use the CPU" in err


@pytest.mark.parametrize("where", ["cutlayer.core.spec.names", "cutlayer.core.outside.announced.announced"])
def test_ctrl_c_before_anything_runs_is_a_sentence(command, monkeypatch, where):
    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(where, interrupted)
    # Tests that run in the background of a shell begin with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = command("list", "guards")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == cli.INTERRUPTED and "interrupted" in err and "Traceback" not in err


def test_a_command_without_its_arguments_shows_its_help(command):
    with contextlib.suppress(SystemExit):
        code, out, err = command()
        assert code in (0, 2) and "Usage" in out + err

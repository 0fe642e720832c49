"""Models of others by name, cut at their layers: split is unsplit, and what cannot be cut is said in words."""

from pathlib import Path

import pytest
import torch
from named_files import nothing_named as nothing_named
from rotation import and_the_rest
from test_every_net_splits import check

from cutlayer.core.spec import NotNamed, spec
from cutlayer.nets import Own, cut, shapes
from cutlayer.nets.answers import only_tensor
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

HERE = f"{Path(__file__).parent}/own_models.py"
PICTURE, TEXT = Task((1, 12, 12), 3), Task((6,), 3)
MODELS = {
    "ViT": (f"{HERE}:ViT", "blocks.0", "head", PICTURE),
    "ConvNeXt": (f"{HERE}:ConvNeXt(width=6)", "stages.1", "head", PICTURE),
    "RoBERTa": (f"{HERE}:Text", "layers.0", "classifier", TEXT),
    "GPT": (f"{HERE}:Text(causal=True)", "layers.1", "classifier", TEXT),
}
every_model = pytest.mark.parametrize("model", MODELS)
PROTOCOLS = [UShaped(), Vanilla(), Bypass()]


def inputs(task, rows=3):
    return torch.rand(rows, *task.shape) if task is PICTURE else torch.randint(20, (rows, *task.shape)).float()


@pytest.mark.parametrize(
    ("model", "protocol"),
    and_the_rest([(model, PROTOCOLS[turn % 3]) for turn, model in enumerate(MODELS)], MODELS, PROTOCOLS),
    ids=str,
)
def test_split_is_whole(model, protocol):
    make, at, back, task = MODELS[model]
    check(Own(make, at=at, back=back), task, protocol)


@every_model
def test_the_parts_are_the_model_bit_for_bit(model):
    make, at, back, task = MODELS[model]
    net = Own(make, at=at, back=back)
    whole = net.factory()
    parts = cut(whole, at, back, shape=task.shape)
    for rows in (1, 2, 5):
        x = inputs(task, rows)
        for training in (True, False):
            whole.train(training)
            for part in parts:
                part.train(training)
            torch.manual_seed(rows)
            expected = only_tensor(whole(x))
            torch.manual_seed(rows)
            assert torch.equal(parts.tail(parts.body(parts.head(x))), expected)
    assert shapes(net, task.shape).z == tuple(parts.head(inputs(task)).shape[1:])


def test_a_text_names_it_and_gives_it_back():
    net = Own(f"{HERE}:ViT(width=4)", at="blocks.0", back="head")
    assert spec(repr(net), "nets") == net
    assert net.factory().head.in_features == 4
    assert spec(f"Own('{HERE}:narrow_vit', at='blocks.0')", "nets").factory().head.in_features == 4
    assert spec("Own('torch.nn:Linear(4, 2)', at='x')", "nets").factory().out_features == 2


def test_a_text_from_elsewhere_imports_nothing():
    text = repr(Own(f"{HERE}:ViT", at="blocks.0"))
    assert spec(text, imports=False) is not None, "it was named here"


def test_a_text_from_elsewhere_imports_nothing_that_was_not_named():
    with pytest.raises(NotNamed, match=r"own_models.py:ViT is not part of cutlayer"):
        spec(f"Own('{HERE}:ViT', at='blocks.0')", imports=False)
    with pytest.raises(NotNamed):
        spec("Own('antigravity:fly', at='x')", imports=False)


def test_plans_differ_by_arguments_and_code_and_not_by_place(tmp_path):
    there = tmp_path / "models.py"
    there.write_text(Path(HERE).read_text())
    one, same, wide = (
        Plan(net=Own(f"{file}:ViT(width={width})", at="blocks.0", back="head"))
        for file, width in ((HERE, 8), (there, 8), (HERE, 12))
    )
    assert one.fingerprint() == same.fingerprint() != wide.fingerprint()
    assert str(tmp_path) not in repr(same.agreed()) and "parameters of the head" in one.agreed()
    there.write_text(Path(HERE).read_text().replace("self.norm(x)[:, 0]", "self.norm(x)[:, 1]"))
    other = Plan(net=Own(f"{there}:ViT(width=8)", at="blocks.0", back="head"))
    assert other.fingerprint() != one.fingerprint()
    one.refuse_nameless()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("my_model", r"cannot read 'my_model': write 'my.py:Model'"),
        ("nowhere.py:ViT", "there is no file nowhere.py"),
        (f"{HERE}:VIT", r"has no class or function 'VIT'; it has .*ViT"),
        (f"{HERE}:ViT(width=open('x'))", "arguments are numbers, strings"),
        (f"{HERE}:ViT(height=3)", "cannot be made: TypeError: .*height"),
        ("builtins:list", r"makes a list, not a torch.nn.Module"),
    ],
)
def test_what_is_no_model(text, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Own(text, at="blocks.0").head((1, 12, 12))


@pytest.mark.parametrize(
    ("make", "at", "back", "words"),
    [
        ("ViT", "", None, r"does not say where to cut: at='NAME'. `cutlayer layers` lists the places"),
        ("ViT", "block.0", None, r"no module 'block.0'; did you mean 'blocks.0'"),
        ("ViT", "blocks.1.norm2", None, r"a skip connection from the result of add_1 passes over the cut"),
        ("Text(tied=True)", "layers.0", None, r"'(words|classifier).weight' is used on both sides of a cut"),
    ],
)
def test_places_that_are_no_cut(make, at, back, words):
    shape = (6,) if make.startswith("Text") else (1, 12, 12)
    with pytest.raises(ValueError, match=words):
        Own(f"{HERE}:{make}", at=at, back=back).head(shape)


def test_which_tensor_of_an_answer_is_meant():
    a, b = torch.zeros(1), torch.ones(1)
    assert only_tensor(a) is only_tensor((a,)) is only_tensor({"x": a, "n": 3}) is a
    assert only_tensor({"last_hidden_state": b, "logits": a}) is a
    assert only_tensor({"x": b, "last_hidden_state": a}) is a
    for several, words in (
        ({"mu": a, "var": b}, "by the names mu, var"),
        ((a, b), "by the names 0, 1"),
        (3, "a int"),
    ):
        with pytest.raises(ValueError, match=f"exactly one tensor, or one called logits .*{words}"):
            only_tensor(several)


class Decides(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        x = self.a(x)
        return self.b(x) if len(x.shape) == 2 and x.shape[0] == 1 else self.b(x) * 2


class Drops(Decides):
    def forward(self, x):
        x = self.a(x)
        return self.b(x) if not self.training or torch.rand([]).item() > 2 else self.b(x.relu())


def test_decisions_by_the_batch_and_draws_between_layers_are_refused():
    with pytest.raises(ValueError, match="does something else for one sample than for several"):
        cut(Decides(), "a", shape=(4,))
    model, before = Drops(), torch.get_rng_state()
    with pytest.raises(ValueError, match="draws random numbers between its layers"):
        cut(model, "a", shape=(4,))
    assert torch.equal(before, torch.get_rng_state())


@every_model
def test_a_bypass_keeps_channels_or_features_home_and_never_tokens(model):
    make, at, back, task = MODELS[model]
    plan = Plan(net=Own(make, at=at, back=back), protocol=Bypass(home=0.5))
    z, shared = cut_shapes(plan, task)[:2]
    assert shared == ((z[0], z[1] // 2) if len(z) == 2 else (z[0] // 2, *z[1:]))

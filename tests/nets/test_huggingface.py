"""Classifiers of transformers from a config.json: split is unsplit, and equal to the library's own answer."""

import json

import pytest
import torch
from rotation import and_the_rest
from test_every_net_splits import check, check_answers_first
from torch import nn

from cutlayer.core.spec import spec
from cutlayer.nets import HuggingFace, load_weights
from cutlayer.nets.answers import only_tensor
from cutlayer.nets.lora import LoRA, folded
from cutlayer.training.build import build_client
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.plan.plan import Plan, Task
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "max_position_embeddings": 20}
ROBERTA = {"model_type": "roberta", **SMALL, **ENDS}
GPT2 = {"model_type": "gpt2", "vocab_size": 30, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 20, **ENDS}
LLAMA = {"model_type": "llama", **SMALL, **ENDS, "num_key_value_heads": 1}  # positions turn inside its layers
VIT = {"model_type": "vit", **{name: SMALL[name] for name in SMALL if name != "vocab_size"}}
VIT |= {"image_size": 16, "patch_size": 8, "num_channels": 1}
TEXT, PICTURE = Task((6,), 3), Task((1, 16, 16), 3)
MODELS = {
    "roberta": (ROBERTA, "roberta.encoder.layer.0", "classifier", TEXT),
    "gpt2": (GPT2, "transformer.h.0", "score", TEXT),
    "llama": (LLAMA, "model.layers.0", "score", TEXT),
    "vit": (VIT, "vit.layers.0", "classifier", PICTURE),
}
every_model = pytest.mark.parametrize("model", MODELS)
PROTOCOLS = [UShaped(), Vanilla(), Bypass()]


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def network(tmp_path):
    pytest.importorskip("transformers", reason="needs cutlayer[text]")

    def made(model):
        config, at, back, task = MODELS[model]
        return HuggingFace(write(tmp_path, config), at=at, back=back), task

    return made


@pytest.mark.parametrize(
    ("model", "protocol"),
    and_the_rest([(model, PROTOCOLS[turn % 3]) for turn, model in enumerate(MODELS)], MODELS, PROTOCOLS),
    ids=str,
)
def test_split_is_whole(network, model, protocol):
    net, task = network(model)
    check(net, task, protocol)


@every_model
def test_a_server_that_answers_first_learns_the_same(network, model, monkeypatch):
    check_answers_first(*network(model), Adam(), monkeypatch)


@every_model
def test_the_parts_give_what_the_library_gives(network, model):
    net, task = network(model)
    whole = net.model(task.shape, task.classes).eval()
    parts = net.parts(task.shape, task.classes)
    for part in parts:
        part.eval()
        part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    x = torch.rand(4, *task.shape) if task is PICTURE else torch.randint(3, 30, (4, *task.shape)).float()
    if task is TEXT:
        whole.set_attn_implementation("sdpa")  # with the library's own masks
    expected = only_tensor(whole(x if task is PICTURE else x.long()))
    assert torch.equal(parts.tail(parts.body(parts.head(x))), expected)


def test_weights_come_from_a_file_of_the_library(network, tmp_path):
    net, task = network("roberta")
    whole = net.model(task.shape, task.classes)
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    parts = net.parts(task.shape, task.classes)
    load_weights(tmp_path / "weights.pt", net, task.shape, task.classes, **parts._asdict())
    for part in parts:
        assert all(torch.equal(t, whole.state_dict()[name]) for name, t in part.state_dict().items())


def test_plans_agree_on_what_is_in_the_config_wherever_it_lies(network, tmp_path):
    net, _ = network("roberta")
    here = Plan(net=net)
    plans = {}
    for place, config in (("there", ROBERTA), ("wider", ROBERTA | {"intermediate_size": 20})):
        (tmp_path / place).mkdir()
        other = HuggingFace(write(tmp_path / place, config), at=net.at, back=net.back)
        plans[place] = Plan(net=other)
        assert spec(repr(other), "nets") == other
    assert here.fingerprint() == plans["there"].fingerprint() != plans["wider"].fingerprint()
    assert str(tmp_path) not in repr(here.agreed()) and "parameters of the body" in here.agreed()


def test_what_is_refused(network, tmp_path):
    net, task = network("gpt2")
    with pytest.raises(ValueError, match=r"reads token ids, .*Npz\(path='texts.npz', vocabulary=30522\)"):
        net.head((3, 32, 32))
    with pytest.raises(ValueError, match="reads at most 20 tokens; got 40"):
        net.head((40,))
    with pytest.raises(ValueError, match=r"ids run from 0 to 29 in this network; the data have 0 to 31"):
        net.head(task.shape)(torch.tensor([[0.0, 31, 1, 1, 1, 1]]))
    with pytest.raises(ValueError, match=r"no module 'transformer.h.9'; did you mean 'transformer.h"):
        HuggingFace(net.config, at="transformer.h.9").head(task.shape)
    write(tmp_path, LLAMA | {"model_type": "mistral", "sliding_window": 4})
    with pytest.raises(ValueError, match=r"see a part of the text only \(sliding_window\)"):
        net.head(task.shape)
    write(tmp_path, {"model_type": "gpt9"})
    with pytest.raises(ValueError, match="has no model_type 'gpt9'"):
        net.head(task.shape)
    write(tmp_path, {"width": 3})
    with pytest.raises(ValueError, match="names a model_type"):
        net.head(task.shape)


def test_a_config_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"there is no {tmp_path}/roberta-base: .*nothing is fetched"):
        HuggingFace(f"{tmp_path}/roberta-base", at="x").head((6,))


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"need the package transformers .*pip install 'cutlayer\[text\]'"):
        HuggingFace(write(tmp_path, ROBERTA), at="x").head((6,))


BERT = {"model_type": "bert", **SMALL, "pad_token_id": 0, "max_position_embeddings": 20}
MASKED = {"bert": (BERT, "bert.encoder.layer.0"), "roberta": (ROBERTA, "roberta.encoder.layer.0")}


def padded(count, pad, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 30, (count, 6), generator=draw)
    return torch.where(torch.arange(6) < torch.randint(2, 7, (count, 1), generator=draw), ids, pad)


@pytest.mark.parametrize(
    ("model", "back"),
    and_the_rest([("bert", None), ("roberta", "classifier")], MASKED, [None, "classifier"]),
)
def test_a_mask_crosses_and_the_parts_give_what_the_library_gives(model, back, tmp_path):
    pytest.importorskip("transformers", reason="needs cutlayer[text]")
    config, at = MASKED[model]
    net = HuggingFace(write(tmp_path, config), at=at, back=back, pad="mask")
    whole = net.model(TEXT.shape, TEXT.classes).eval()
    for weight in (p for p in whole.parameters() if p.dim() > 1):
        nn.init.normal_(weight)  # as they start, nobody looks at anything in particular
    parts = net.parts(TEXT.shape, TEXT.classes)
    for part in parts:
        part.eval()
        part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    x = padded(5, config["pad_token_id"])
    mask = x != config["pad_token_id"]
    assert not mask.all()
    made = parts.head(x)
    assert set(made.beside) == {"mask"} and torch.equal(made.beside["mask"], mask)
    found = parts.tail(parts.body(made.z, **made.beside), **made.beside)
    whole.set_attn_implementation("sdpa")  # with the library's own masks
    torch.testing.assert_close(found, only_tensor(whole(x, attention_mask=mask)), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, only_tensor(whole(x)), atol=1e-4), "a mask that changes nothing is none"


@pytest.mark.parametrize("protocol", [UShaped(), pytest.param(Bypass(), marks=pytest.mark.campaign)], ids=repr)
def test_split_is_whole_with_a_mask(protocol, tmp_path):
    pytest.importorskip("transformers", reason="needs cutlayer[text]")
    net = HuggingFace(write(tmp_path, BERT), at="bert.encoder.layer.0", back="classifier", pad="mask")
    assert spec(repr(net), "nets").pad == "mask"
    check(net, TEXT._replace(vocabulary=30), protocol)


def test_where_there_is_nothing_to_mask_is_said(tmp_path):
    pytest.importorskip("transformers", reason="needs cutlayer[text]")
    for config, words in (
        (GPT2, "a decoder reads what came before alone"),
        (VIT, "images have no padding"),
        (BERT | {"pad_token_id": None}, "names no pad_token_id"),
    ):
        with pytest.raises(ValueError, match=words):
            HuggingFace(write(tmp_path, config), at="x", pad="mask").head((1, 16, 16) if config is VIT else (6,))


@pytest.mark.parametrize(
    ("model", "at"), [pytest.param("roberta", "query,value", marks=pytest.mark.campaign), ("gpt2", "c_attn")]
)
def test_adapters_sit_on_its_layers(network, model, at):
    net, task = network(model)
    plans = [Plan(net=net, adapters=adapters, private_seed=1) for adapters in (None, LoRA(rank=2, at=at))]
    bare, adapted = (build_client(plan, task, 0, lambda message: message).split.head.eval() for plan in plans)
    x = torch.randint(3, 30, (4, *task.shape))
    assert torch.equal(bare(x), adapted(x))
    learnt = [p for p in adapted.parameters() if p.requires_grad]
    assert len(learnt) == 2 * len(at.split(","))
    for parameter in learnt:
        nn.init.normal_(parameter)
    assert not torch.allclose(bare(x), adapted(x))
    bare.load_state_dict(folded(adapted).state_dict())
    torch.testing.assert_close(bare(x), adapted(x), rtol=1e-4, atol=1e-5)

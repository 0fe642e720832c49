"""Models of others, cut at their layers: between machines they learn what they learn in one process, bit for bit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from named_files import nothing_named as nothing_named
from rehearsal import refuse_other_weights, rehearse, undisturbed
from toys import tiny_parts, tiny_plan

from cutlayer.nets import HuggingFace, Own
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

MODELS = Path(__file__).parents[2] / "nets" / "own_models.py"
SMALL = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "max_position_embeddings": 12}
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
GPT = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12}


def words(samples):
    """Token ids that tell the class, in place of pictures."""
    noise = torch.randint(3, 10, (len(samples), 6), generator=torch.Generator().manual_seed(len(samples)))
    noise[:, 2] = 10 + samples.y
    return replace(samples, x=noise.float())


def texts():
    parts = tiny_parts(private=24)
    return replace(parts, **{name: words(getattr(parts, name)) for name in ("private", "val", "aux", "test")})


def compare(net, protocol, folder, parts):
    plan = tiny_plan(net=net, protocol=protocol, clients=2, epochs=1, batch_size=6)
    refuse_other_weights(undisturbed(plan, parts), rehearse(plan, folder, parts=parts, names=("ward-a", "ward-b")))


@pytest.mark.parametrize(
    ("make", "at", "back", "protocol"),
    [("ViT", "blocks.0", "head", UShaped()), ("Text(causal=True)", "layers.0", "classifier", Vanilla())],
)
def test_own(make, at, back, protocol, tmp_path):
    parts = texts() if make.startswith("Text") else tiny_parts(private=24)
    compare(Own(f"{MODELS}:{make}", at=at, back=back), protocol, tmp_path, parts)


@pytest.mark.parametrize(
    ("config", "at", "back", "protocol"),
    [
        ({"model_type": "roberta", **SMALL, **SIZES}, "roberta.encoder.layer.0", "classifier", Bypass()),
        ({"model_type": "gpt2", **SMALL, **GPT}, "transformer.h.0", "score", UShaped()),
    ],
    ids=["roberta", "gpt2"],
)
def test_huggingface(config, at, back, protocol, tmp_path):
    pytest.importorskip("transformers", reason="needs cutlayer[text]")
    (tmp_path / "config.json").write_text(json.dumps(config))
    compare(HuggingFace(str(tmp_path), at=at, back=back), protocol, tmp_path / "run", texts())

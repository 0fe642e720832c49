"""Weights from files: everything arrives, or nothing does and one sentence says why; code in a file never runs."""

import copy
import os
import pickle
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cutlayer.nets import (
    MLP,
    VGG16,
    DeepLabV3,
    LeNet,
    MicronNet,
    MobileNetV3Large,
    Own,
    ResNet18,
    ResNet20,
    ResNet50,
    Whole,
    load_weights,
    whole_state,
)

COLOUR, TABLE = (3, 32, 32), (9,)


def build(net, shape, classes, seed):
    torch.manual_seed(seed)
    parts = {"head": net.head(shape), "body": net.body(shape), "tail": net.tail(shape, classes)}
    for part in parts.values():
        for name, tensor in part.state_dict().items():
            tensor.copy_(torch.randn_like(tensor) if tensor.is_floating_point() else torch.tensor(7 + len(name)))
    return parts


def states(parts):
    return {part: {key: t.clone() for key, t in module.state_dict().items()} for part, module in parts.items()}


def same(one, other):
    return all(torch.equal(t, other[part][key]) for part, state in one.items() for key, t in state.items())


def write(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.fixture
def small(tmp_path):
    """(parts to fill, a file of the same network with other weights, its state)"""
    whole = whole_state(ResNet20(), **build(ResNet20(), COLOUR, 10, seed=1))
    return build(ResNet20(), COLOUR, 10, seed=2), tmp_path / "whole.pt", whole


def refuse(small, state, words, **options):
    """Loading `state` is refused with `words`, and no part has changed."""
    parts, path, _ = small
    before = states(parts)
    write(path, state)
    with pytest.raises(ValueError, match=words) as caught:
        load_weights(path, ResNet20(), COLOUR, 10, **(options or parts))
    assert str(caught.value).endswith("Nothing was loaded.")
    assert same(states(parts), before)


# --------------------------------------------------------------------- what arrives
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (ResNet20(level=5), COLOUR),
        (ResNet18(depth=4, norm="group"), COLOUR),
        (MobileNetV3Large(), COLOUR),
        (MicronNet(), COLOUR),
        (LeNet(), (1, 28, 28)),
        (MLP(), TABLE),
    ],
    ids=repr,
)
def test_round_trip(tmp_path, net, shape, suffix):
    written, read = build(net, shape, 10, seed=1), build(net, shape, 10, seed=2)
    load_weights(write(tmp_path / f"w{suffix}", whole_state(net, **written)), net, shape, 10, **read)
    assert same(states(read), states(written))


def test_the_old_format_of_torch(small):
    parts, path, whole = small
    torch.save(whole, path, _use_new_zipfile_serialization=False)
    load_weights(str(path), ResNet20(), COLOUR, 10, **parts)
    assert all(torch.equal(t, whole[key]) for key, t in whole_state(ResNet20(), **parts).items())


def test_a_party_fills_its_own_part_and_no_other(small):
    parts, path, whole = small
    before = states(parts)
    load_weights(write(path, whole), ResNet20(), COLOUR, 10, head=parts["head"])
    after = states(parts)
    assert all(torch.equal(t, whole[key]) for key, t in after["head"].items())
    assert same({"body": after["body"], "tail": after["tail"]}, before)


def test_a_file_cut_elsewhere_fits_every_cut_of_the_network(small):
    _, path, whole = small
    deeper = build(ResNet20(level=7), COLOUR, 10, seed=3)
    load_weights(write(path, whole), ResNet20(level=7), COLOUR, 10, **deeper)
    assert all(torch.equal(t, whole[key]) for key, t in whole_state(ResNet20(), **deeper).items())


def test_a_published_network_also_reads_our_names(small):
    parts, path, _ = small
    other = build(ResNet20(), COLOUR, 10, seed=1)
    ours = {f"{part}.{key}": t for part, module in other.items() for key, t in module.state_dict().items()}
    load_weights(write(path, ours), ResNet20(), COLOUR, 10, **parts)
    assert same(states(parts), states(other))


def test_another_number_of_classes(small):
    parts, path, whole = small
    whole["fc.weight"], whole["fc.bias"] = torch.zeros(1000, 64), torch.zeros(1000)
    refuse(small, whole, r"2 keys are misshapen \(fc.weight is \(1000, 64\) and not \(10, 64\), .*for 1000 classes, "
           "this one for 10: leave the tail out")  # fmt: skip
    before = states(parts)
    load_weights(path, ResNet20(), COLOUR, 10, head=parts["head"], body=parts["body"])
    assert same({"tail": states(parts)["tail"]}, before)
    assert all(torch.equal(t, whole[key]) for key, t in parts["head"].state_dict().items())


def test_half_precision_is_widened(small):
    parts, path, whole = small
    half = {key: t.half() if t.is_floating_point() else t for key, t in whole.items()}
    load_weights(write(path, half), ResNet20(), COLOUR, 10, **parts)
    weight = parts["head"].get_parameter("conv1.weight")
    assert weight.dtype == torch.float32
    assert torch.equal(weight, half["conv1.weight"].float())


def test_files_from_before_batch_counters(small):
    parts, path, whole = small
    old = {key: t for key, t in whole.items() if not key.endswith("num_batches_tracked")}
    load_weights(write(path, old), ResNet20(), COLOUR, 10, **parts)
    assert torch.equal(parts["head"].get_buffer("bn1.running_mean"), whole["bn1.running_mean"])


class Named(nn.Module):
    """A model whose own names look like ours."""

    def __init__(self):
        super().__init__()
        self.head, self.body, self.tail = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.tail(self.body(self.head(x)).relu())


def test_an_own_model_reads_its_own_state_dict(tmp_path):
    net, model = Own(Named, "head", "tail"), Named()
    parts = {"head": net.head((4,)), "body": net.body((4,)), "tail": net.tail((4,), 2)}
    load_weights(write(tmp_path / "own.pt", model.state_dict()), net, (4,), 2, **parts)
    x = torch.rand(5, 4)
    assert torch.equal(parts["tail"](parts["body"](parts["head"](x))), model(x))
    before = states(parts)
    load_weights(write(tmp_path / "own.pt", Named().state_dict()), net, (4,), 2, head=parts["head"])
    assert not same({"head": states(parts)["head"]}, before)


# ------------------------------------------------------------- torchvision's names
def published(net, classes=1000, shape=(3, 224, 224)):
    with torch.device("meta"):
        state = whole_state(net, head=net.head(shape), body=net.body(shape), tail=net.tail(shape, classes))
    return {key: tuple(t.shape) for key, t in state.items()}


def test_names_of_vgg16():
    convolutions = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256)}
    convolutions |= {12: (256, 256), 14: (256, 256), 17: (256, 512)}
    convolutions |= dict.fromkeys((19, 21, 24, 26, 28), (512, 512))
    expected = {f"features.{i}.weight": (d, c, 3, 3) for i, (c, d) in convolutions.items()}
    expected |= {f"features.{i}.bias": (d,) for i, (_, d) in convolutions.items()}
    for i, (c, d) in {0: (25088, 4096), 3: (4096, 4096), 6: (4096, 1000)}.items():
        expected |= {f"classifier.{i}.weight": (d, c), f"classifier.{i}.bias": (d,)}
    assert published(VGG16()) == expected


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6])
def test_names_of_the_resnets(depth):
    known = published(ResNet18(depth=depth))
    assert len(known) == 122  # the entries of torchvision's resnet18
    assert known["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert known["fc.weight"] == (1000, 512)
    known = published(ResNet50(depth=depth))
    assert len(known) == 320  # and of its resnet50
    assert known["layer1.0.downsample.1.running_var"] == (256,)
    assert known["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert known["fc.bias"] == (1000,)
    assert published(ResNet50(wide=True))["layer3.5.conv2.weight"] == (512, 512, 3, 3)


@pytest.mark.parametrize("blocks", [0, 9, 16])
def test_names_of_deeplab(blocks):
    known = published(DeepLabV3(blocks=blocks), classes=21)
    # torchvision's deeplabv3_resnet50 without its auxiliary classifier: those of resnet50 without fc, 6 pairs of a
    # convolution and five entries of BatchNorm in the pyramid, one more behind it, and the classifier.
    backbone = {key.removeprefix("backbone.") for key in known if key.startswith("backbone.")}
    assert backbone == {key for key in published(ResNet50()) if not key.startswith("fc.")}
    assert len(known) == 318 + 7 * 6 + 2
    assert known["backbone.layer4.2.conv2.weight"] == (512, 512, 3, 3)
    assert known["classifier.0.convs.0.0.weight"] == (256, 2048, 1, 1)
    assert known["classifier.0.convs.3.1.running_mean"] == (256,)
    assert known["classifier.0.convs.3.0.weight"] == (256, 2048, 3, 3)
    assert known["classifier.0.convs.4.1.weight"] == (256, 2048, 1, 1)
    assert known["classifier.0.convs.4.2.bias"] == (256,)
    assert known["classifier.0.project.0.weight"] == (256, 1280, 1, 1)
    assert known["classifier.1.weight"] == (256, 256, 3, 3) and known["classifier.2.weight"] == (256,)
    assert known["classifier.4.weight"] == (21, 256, 1, 1) and known["classifier.4.bias"] == (21,)


class SmallDeepLab(DeepLabV3):
    """The same names with few numbers."""

    def head(self, shape):
        return nn.Sequential(OrderedDict(backbone=nn.Sequential(OrderedDict(conv1=nn.Conv2d(3, 2, 1)))))

    def body(self, shape):
        inner = nn.Sequential(OrderedDict(layer4=nn.Conv2d(2, 2, 1)))
        return nn.Sequential(OrderedDict(backbone=inner, classifier=nn.Sequential(nn.Conv2d(2, 2, 1))))

    def tail(self, shape, classes):
        return nn.Conv2d(2, classes, 1)


def test_a_file_of_the_backbone_fills_it_alone_and_one_of_the_whole_all(tmp_path):
    net, shape = SmallDeepLab(), (3, 4, 4)

    def made():
        return {"head": net.head(shape), "body": net.body(shape), "tail": net.tail(shape, 5)}

    parts, other = made(), made()
    whole = whole_state(net, **other) | {"aux_classifier.0.weight": torch.rand(2)}
    load_weights(write(tmp_path / "whole.pt", whole), net, shape, 5, **parts)
    assert same(states(parts), states(other))
    uncut = Whole(net=net)
    inside = {"body": uncut.body(shape), "tail": uncut.tail(shape, 5)}
    load_weights(tmp_path / "whole.pt", uncut, shape, 5, **inside)
    assert same({"all": whole_state(uncut, **inside)}, {"all": whole_state(net, **other)})
    resnet = {k.removeprefix("backbone."): t + 1 for k, t in whole.items() if k.startswith("backbone.")}
    before = whole_state(net, **{name: copy.deepcopy(part) for name, part in parts.items()})
    load_weights(write(tmp_path / "resnet.pt", resnet | {"fc.weight": torch.rand(3)}), net, shape, 5, **parts)
    for key, tensor in whole_state(net, **parts).items():
        assert torch.equal(tensor, before[key] + key.startswith("backbone.")), key
    # A side that has nothing of the backbone has nothing to take.
    load_weights(tmp_path / "resnet.pt", net, shape, 5, tail=parts["tail"])
    with pytest.raises(ValueError, match=r"1 key is misshapen \(backbone.conv1.weight"):
        load_weights(
            write(tmp_path / "x.pt", resnet | {"conv1.weight": torch.rand(1)}), net, shape, 5, head=parts["head"]
        )


def test_names_of_mobilenet_v3():
    known = published(MobileNetV3Large())
    assert len(known) == 312  # the entries of torchvision's mobilenet_v3_large
    some = {
        "features.0.0.weight": (16, 3, 3, 3),
        "features.1.block.0.0.weight": (16, 1, 3, 3),  # the first block does not widen
        "features.1.block.1.1.running_mean": (16,),
        "features.4.block.1.0.weight": (72, 1, 5, 5),
        "features.4.block.2.fc1.weight": (24, 72, 1, 1),
        "features.4.block.3.0.weight": (40, 72, 1, 1),
        "features.7.block.2.0.weight": (80, 240, 1, 1),
        "features.13.block.2.fc2.bias": (672,),
        "features.15.block.3.1.num_batches_tracked": (),
        "features.16.0.weight": (960, 160, 1, 1),
        "classifier.0.weight": (1280, 960),
        "classifier.3.weight": (1000, 1280),
    }
    assert {key: known.get(key) for key in some} == some


# --------------------------------------------------------------------- what is refused
def test_missing_and_surplus_keys_are_named_and_counted(small):
    _, _, whole = small
    gone = [key for key in whole if key.startswith("layer3.2.conv")]
    changed = {key: t for key, t in whole.items() if key not in gone} | {
        f"extra{i}": torch.zeros(1) for i in range(5)
    }
    refuse(
        small, changed,
        r"does not fit ResNet20\(\): 2 keys are missing \(layer3.2.conv1.weight, layer3.2.conv2.weight\); "
        r"5 keys are surplus \(extra0, extra1, extra2 and 2 more\)",
    )  # fmt: skip


def test_one_key_is_not_several(small):
    refuse(small, small[2] | {"more": torch.zeros(1)}, r"1 key is surplus \(more\)\. ")


def test_a_surplus_key_is_refused_even_for_one_part(small):
    refuse(small, small[2] | {"more": torch.zeros(1)}, r"1 key is surplus", head=small[0]["head"])


def test_a_part_that_another_holds_may_be_missing(small):
    parts, path, whole = small
    head = {key: whole[key] for key in parts["head"].state_dict()}
    load_weights(write(path, head), ResNet20(), COLOUR, 10, head=parts["head"])
    assert torch.equal(parts["head"].get_parameter("conv1.weight"), whole["conv1.weight"])
    refuse(small, head, r"keys are missing \(layer2.1.conv1.weight", body=parts["body"])


def test_a_file_without_a_last_layer(small):
    body = {key: t for key, t in small[2].items() if not key.startswith("fc.")}
    refuse(small, body, r"2 keys are missing .*has no last layer: leave the tail out")


def test_another_shape(small):
    refuse(small, small[2] | {"conv1.weight": torch.zeros(16, 1, 3, 3)},
           r"1 key is misshapen \(conv1.weight is \(16, 1, 3, 3\) and not \(16, 3, 3, 3\)\)")  # fmt: skip


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(16, 3, 3, 3, dtype=torch.int8), torch.zeros(16, 3, 3, 3, dtype=torch.complex64),
     torch.zeros(16, 3, 3, 3).to_sparse()],
    ids=["int8", "complex", "sparse"],
)  # fmt: skip
def test_other_kinds_of_numbers(small, tensor):
    refuse(small, small[2] | {"conv1.weight": tensor}, r"1 key is not plain numbers \(conv1.weight: torch")


def test_batch_norm_weights_for_group_norm(tmp_path):
    net = ResNet20(norm="group")
    parts = build(net, COLOUR, 10, seed=1)
    path = write(tmp_path / "w.pt", whole_state(ResNet20(), **build(ResNet20(), COLOUR, 10, seed=2)))
    with pytest.raises(ValueError, match=r"keys are surplus \(bn1.running_mean.*build it with norm='batch'"):
        load_weights(path, net, COLOUR, 10, **parts)


def test_a_network_without_published_names(tmp_path):
    parts = build(MLP(), TABLE, 3, seed=1)
    path = write(tmp_path / "w.pt", {"fc.weight": torch.zeros(3, 32)})
    with pytest.raises(ValueError, match=r"MLP has no published names: keys start with head\., body\. or tail\."):
        load_weights(path, MLP(), TABLE, 3, **parts)


def test_no_part_named(small):
    with pytest.raises(ValueError, match="name the parts to fill: head=, body= or tail="):
        load_weights(small[1], ResNet20(), COLOUR, 10)


# ------------------------------------------------------------------- files not to trust
class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("how", ["zip", "old", "pickle"])
def test_code_in_a_file_does_not_run(small, tmp_path, monkeypatch, how):
    parts, path, whole = small
    before, trace = states(parts), tmp_path / "it-ran"
    monkeypatch.setenv("EVIL", str(trace))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    if how == "pickle":
        path.write_bytes(pickle.dumps(Evil(), protocol=2))
    else:
        torch.save(whole | {"evil": Evil()}, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(
        ValueError, match=r"holds more than tensors \(\w+\.mkdir\), and loading that could run code"
    ) as caught:
        load_weights(path, ResNet20(), COLOUR, 10, **parts)
    assert not trace.exists()
    assert "weights_only" not in str(caught.value), "nobody should be led to run the file"
    assert same(states(parts), before)


def test_a_whole_model_in_a_file(small):
    torch.save(nn.Linear(2, 3), small[1])
    with pytest.raises(
        ValueError, match=r"more than tensors \(torch.nn.modules.linear.Linear\).*model.state_dict\(\)"
    ):
        load_weights(small[1], ResNet20(), COLOUR, 10, **small[0])


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", "old.pt"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files(small, tmp_path, suffix, share):
    parts, _, whole = small
    before, path = states(parts), tmp_path / f"w{suffix}"
    if suffix == "old.pt":
        torch.save(whole, path, _use_new_zipfile_serialization=False)
    else:
        write(path, whole)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ValueError, match=r"is damaged or not a (safetensors file|file of torch\.save): "):
        load_weights(path, ResNet20(), COLOUR, 10, **parts)
    assert same(states(parts), before)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        ([torch.zeros(1)], "it holds a list"),
        ({"epoch": 3, "state_dict": {}}, "names and tensors alone: it holds epoch, state_dict"),
        ({3: torch.zeros(1)}, "it holds 3"),
    ],
)
def test_files_that_are_no_state_dict(small, thing, words):
    torch.save(thing, small[1])
    with pytest.raises(ValueError, match=f"is not a state dict.*{words}"):
        load_weights(small[1], ResNet20(), COLOUR, 10, **small[0])


def test_other_files(small, tmp_path):
    with pytest.raises(ValueError, match=r"weights come in \.safetensors, \.pt, \.pth files; got w\.onnx"):
        load_weights(tmp_path / "w.onnx", ResNet20(), COLOUR, 10, **small[0])
    for suffix in (".pt", ".safetensors"):
        with pytest.raises(FileNotFoundError):
            load_weights(tmp_path / f"none{suffix}", ResNet20(), COLOUR, 10, **small[0])
        (tmp_path / f"text{suffix}").write_text("not weights at all")
        with pytest.raises(ValueError, match="is damaged or not a"):
            load_weights(tmp_path / f"text{suffix}", ResNet20(), COLOUR, 10, **small[0])

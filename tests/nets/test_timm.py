"""Networks of timm by name."""

import sys

import pytest
from test_every_net_splits import check

from cutlayer.nets import Timm
from cutlayer.training.plan.plan import Task


@pytest.fixture
def library():
    try:
        import timm
    except Exception as error:
        pytest.skip(f"needs cutlayer[vision] with a torchvision that fits torch: {error}")
    return timm


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "net",
    [
        Timm("vit_tiny_patch16_224", at="blocks.3", back="head"),
        Timm("convnext_atto", at="stages.1", back="head.fc"),
        Timm("resnet18", at="layer1", back="fc"),
    ],
    ids=repr,
)
def test_split_is_whole(net):
    check(net, Task((3, 32, 32), 5))


@pytest.mark.usefixtures("library")
def test_a_name_that_is_not_there():
    with pytest.raises(ValueError, match=r"timm has no network 'vit_tinny_patch16_224'; did you mean .*vit_tiny"):
        Timm("vit_tinny_patch16_224", at="blocks.3").head((3, 224, 224))


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"need the packages timm and .*pip install 'cutlayer\[vision\]'"):
        Timm("resnet18", at="layer1").head((3, 32, 32))

"""A network of your own. Copy this file, put your model in, and say where to cut."""

from torch import Tensor, nn

from cutlayer import Plan
from cutlayer.data import Fashion
from cutlayer.guards import LightSplit
from cutlayer.nets import Own


class MyNet(nn.Module):
    """An ordinary PyTorch model; it knows nothing of the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.conv = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 7 * 7, 64)
        self.classify = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.conv(self.stem(x)).relu(), 2)
        return self.classify(self.hidden(x.flatten(1)).relu())


def ushaped() -> Plan:
    """The client keeps `stem` and `classify`; the rest is the server's. Your data: Npz(path="...")."""
    return Plan(net=Own(MyNet, at="stem", back="classify"), data=Fashion())


def guarded() -> Plan:
    """The same cut behind a projection to an eighth."""
    return Plan(net=Own(MyNet, at="stem", back="classify"), data=Fashion(), guard=LightSplit(ratio=8))

"""`cutlayer check` of guards that read a series alone, and which line a broken one hears of."""

import pytest

from cutlayer.audit import check
from cutlayer.core.spec import spec

MEANS = """
from dataclasses import dataclass
from torch import nn
from cutlayer.guards import Guard, GuardModule, Guarded

@dataclass(frozen=True, repr=False)
class Means(Guard):
    "Means of neighbours."
    width: int = 8
    def out_shape(self, shape):
        if len(shape) != 2 or shape[1] < self.width:
            raise ValueError(f"Means reads series of at least {self.width} moments; got {tuple(shape)}")
        return (shape[0], shape[1] // self.width)
    def build(self, shape, public, private, task=None):
        return Pool(self.width)
    def lift(self, shape, public):
        return nn.Upsample(size=shape[1])

class Pool(GuardModule):
    def __init__(self, width):
        super().__init__()
        self.pool = nn.AvgPool1d(width)
    def forward(self, z, batch):
        return Guarded(self.pool(z))
"""


@pytest.fixture
def checked(tmp_path):
    def call(text):
        (tmp_path / "means.py").write_text(text)
        return check.check(spec(f"{tmp_path / 'means.py'}:Means(width=8)", "guards"))

    return call


def test_a_guard_that_reads_series_alone_is_held_to_every_law(checked):
    found = checked(MEANS)
    assert [one.why for one in found if one.holds is False] == []
    assert sum(one.holds is True for one in found) >= 12


def test_a_mistake_is_told_by_the_line_of_the_guard_and_not_of_torch(checked):
    text = MEANS.replace("self.pool(z)", "self.pool(z[:, None])")
    line = text[: text.index("self.pool(z[")].count("\n") + 1
    broken = [one.why for one in checked(text) if one.holds is False]
    assert broken and f"means.py, line {line}: RuntimeError" in broken[0] and "pooling.py" not in " ".join(broken)

"""Entries for a GPU are listed everywhere, and left out where there is none."""

import pytest
import torch

from cutlayer.bench import run as bench
from cutlayer.bench.gpu import ENTRIES


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: cutlayer bench gpu measures it")
def test_they_are_listed_and_left_out_without_a_gpu():
    assert ENTRIES.items() <= bench.ENTRIES.items()
    assert bench.run(["gpu."], quick=True) == []

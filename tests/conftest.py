"""One thread everywhere: bit equality holds only for equal thread counts, and busy cores punish spinning."""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def double() -> Iterator[None]:
    """Build and compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)

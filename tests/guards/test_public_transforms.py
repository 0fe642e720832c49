"""DST, Haar and PCA: orthonormal bases, each against what defines it. What they share with DCT is tested there."""

import pytest
import scipy.fft
import torch
from test_dct import SHAPES, activations
from toys import batches

from cutlayer.guards import DCT, DST, PCA, Haar

GUARDS = [DST(), Haar(), PCA()]
guards = pytest.mark.parametrize("guard", GUARDS, ids=repr)


@guards
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 16, 33])
def test_a_basis_is_orthonormal(guard, size):
    Q = guard.basis(size)
    assert Q.dtype == torch.float64
    torch.testing.assert_close(Q @ Q.T, torch.eye(size, dtype=torch.float64), atol=1e-10, rtol=0)


@guards
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_the_public_way_back_is_the_inverse(guard, shape):
    whole = type(guard)(energy=1.0)
    z = activations(shape)
    seen = whole.build(shape, 1, 2)(z, batches(1)[0]).seen
    torch.testing.assert_close(whole.undo(shape, 1)(seen), z, atol=1e-5, rtol=0)


def test_dst_is_scipys():
    for size in (1, 5, 8):
        expected = scipy.fft.dst(torch.eye(size, dtype=torch.float64).numpy(), type=2, norm="ortho", axis=0)
        torch.testing.assert_close(DST().basis(size), torch.from_numpy(expected), atol=1e-12, rtol=0)


def test_haar_of_four_is_haars():
    rows = [[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]]
    expected = torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)
    torch.testing.assert_close(Haar().basis(4), expected, atol=1e-12, rtol=0)


def test_pca_takes_apart_neighbours_that_correlate_and_nears_the_cosine():
    index = torch.arange(9, dtype=torch.float64)
    Q = PCA(rho=0.6).basis(9)
    variances = Q @ (0.6 ** (index[:, None] - index).abs()) @ Q.T
    diagonal = variances.diagonal()
    assert (variances - diagonal.diag()).abs().max() < 1e-10 and (diagonal.diff() < 0).all()
    apart = [(PCA(rho=rho).basis(9).abs() - DCT().basis(9).abs()).abs().max() for rho in (0.6, 0.9, 0.999)]
    assert apart[0] > apart[1] > apart[2] and apart[2] < 0.01


def test_an_edge_costs_wavelets_less_than_cosines():
    z = torch.zeros(2, 1, 16, 16)
    z[:, :, :8] = 1.0
    kept = {}
    for guard in (DCT(energy=0.999), Haar(energy=0.999)):
        module = guard.build((1, 16, 16), 1, 2)
        module(z, batches(1, size=2)[0])
        kept[type(guard)] = float(module.notes["kept"])
    assert kept[Haar] < kept[DCT]


@pytest.mark.parametrize("rho", [0, 1, "a"])
def test_a_correlation_is_between_nothing_and_all(rho):
    with pytest.raises(ValueError, match="how far neighbours correlate"):
        PCA(rho=rho)

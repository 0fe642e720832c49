"""Rows of an audit for tests of verdicts: what the judge would have written, from the scores of single samples."""

import torch

from cutlayer.audit.uncertainty import intervals
from cutlayer.metrics.bootstrap import RECOGNISED, tail

FLOORS = {
    name: {"ssim": 0.3, "ssim_either": 0.3, "ssim_p90": 0.3, "psnr": 8.0, "mse": 0.2, "ncc": 0.2, "lpips": None,
           "fg_ssim": None, "fg_psnr": None, "fg_lpips": None}
    for name in ("blank", "mean", "class_mean")
}  # fmt: skip
COST = {
    "seed": 0, "form": "", "ceiling": False, "target": "", "white_box": True, "below_default": [], "broken": 0,
    "knows": ["what the server receives"], "tries": 1, "seconds": 1.0, "why_control_failed": None, "valid": True,
    "why_invalid": None, "accuracy": 0.9, "accuracy_spread": 0.0, "accuracy_chance": 0.1, "labels_travel": False,
    "epsilon_asked": None, "bytes_up": 8.0, "bytes_down": 8.0, "bytes_weights": 0.0, "train_seconds": 1.0,
    "within_over_total": 0.5, "rates": {"total ratio": None},
    "sides": {side: {"parameters": 1, "macs": 1} for side in ("client", "server")} | {"cut": [4]},
    "privacy": {"claims": [], "epsilon": None, "why_no_epsilon": "-", "weights": None, "why_no_weights": None,
                "inference": None, "not_covered": []},
    "client_memory": {"parameters": 1, "gradients": 1, "optimizer": 1, "activations": 1},
}  # fmt: skip
NO_FIGURES = dict.fromkeys(
    ("ssim", "ssim_either", "ssim_p90", "psnr", "mse", "ncc", "lpips", "fg_ssim", "fg_psnr", "fg_lpips", "recon_std")
)


def pictured(guard, scores, attack="Decoder()", units=None, **changes):
    """A row of an attack on images. One score stands for forty images alike."""
    scores = [scores] * 40 if isinstance(scores, float) else list(scores)
    each = torch.tensor(scores, dtype=torch.float64)
    mean = float(each.mean())
    row = COST | NO_FIGURES | {
        "guard": guard, "attack": attack, "plain": attack, "secret": "images", "metric": "ssim", "chance": None,
        "n": len(scores), "ssim": mean, "ssim_either": mean, "value": mean, "ssim_inverted": 0.0,
        "ssim_p90": tail(each), "psnr": 15.0, "mse": 0.03, "ncc": mean, "recon_std": 0.2,
        "above_half": float((each > RECOGNISED).double().mean()),
        "worst": [[n, scores[n]] for n in each.sort(descending=True, stable=True).indices[:10].tolist()],
        "sampled": {"scores": scores, "units": units},
    } | changes  # fmt: skip
    return {**row, "interval": intervals(row)}


def named(guard, right, attack="LabelClustering()", secret="labels", chance=0.2, count=100, **changes):
    """A row of an attack on labels or an attribute that named a share `right` of them."""
    scores = [1.0] * round(right * count) + [0.0] * (count - round(right * count))
    row = COST | NO_FIGURES | {
        "guard": guard, "attack": attack, "plain": attack, "secret": secret, "metric": "accuracy", "chance": chance,
        "n": count, "value": right, "white_box": False, "sampled": {"scores": scores, "units": None},
    } | changes  # fmt: skip
    return {**row, "interval": intervals(row)}

"""`--track tensorboard` writes what TensorBoard reads."""

import pytest

pytest.importorskip("tensorboard", reason="pip install 'cutlayer[docs]'")


def test_losses_and_pictures_are_read_back(command, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "a"
    code, _, err = command(
        "audit", "--data", "Fashion(limit=200)", "--epochs", 1, "--no-alone", "--images", 16, "--threads", 1,
        "--attack", "Decoder(steps=2, width=4, hidden=8)", "--track", "tensorboard", "--out", out,
    )  # fmt: skip
    assert code == 0, err
    read = EventAccumulator(str(out / "tensorboard"))
    read.Reload()
    assert "reconstructions" in read.Tags()["images"]
    assert any(name.endswith("/value") for name in read.Tags()["scalars"])

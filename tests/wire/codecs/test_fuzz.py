"""Damaged payloads: a named error or a tensor of the form that was claimed. A slice, and all of it as a campaign."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fuzz import ROOM, frames, into_codecs, into_frames, payloads

from cutlayer.wire import frames as wire
from cutlayer.wire.codecs import BY_TAG

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"
CODECS, FRAMES = 200_000, 100_000


def test_undamaged_ones_are_read_and_every_codec_is_among_them():
    whole = frames()
    for frame in whole:
        assert wire.encode(wire.decode(frame)) is not None
    assert {one.tag for one in payloads(whole)} == set(BY_TAG)


def test_damaged_payloads_are_refused_by_name_or_have_the_form_they_claim():
    """A slice of the campaign."""
    for found in (into_codecs(6000, seed=5), into_frames(4000, seed=6)):
        assert found.grown < ROOM
        refused = sum(row["refused"] for row in found.by(0).values())
        assert found.count / 2 < refused < found.count


@pytest.mark.parametrize(
    "decode",
    [
        lambda data, dtype, shape: torch.zeros(1, dtype=dtype),  # believes nothing, and says so in another shape
        lambda data, dtype, shape: torch.zeros([min(side, 9) for side in shape], dtype=dtype),  # believes any shape
        lambda data, dtype, shape: data[100_000],  # fails without a name
    ],
)
def test_a_decoder_that_does_wrong_is_noticed(decode, monkeypatch):
    honest = BY_TAG[0].decode
    corpus = payloads(frames())
    monkeypatch.setattr("fuzz.payloads", lambda whole: corpus)
    monkeypatch.setitem(BY_TAG, 0, SimpleNamespace(decode=decode))
    with pytest.raises((AssertionError, IndexError)):
        into_codecs(2000, seed=3)
    monkeypatch.setitem(BY_TAG, 0, SimpleNamespace(decode=honest))
    assert into_codecs(200, seed=3).count == 200


@pytest.mark.campaign
def test_the_campaign_of_damaged_payloads():
    """At least 100,000 payloads over every codec; what came of them is recorded."""
    told = {"codecs": into_codecs(CODECS, seed=1), "frames": into_frames(FRAMES, seed=2)}
    total = sum(found.count for found in told.values())
    assert total >= 100_000 and all(found.grown < ROOM for found in told.values())
    assert set(told["codecs"].by(0)) == {repr(codec) for codec in BY_TAG.values()}
    figures = {
        "command": "python -m pytest -m campaign tests/wire/codecs/test_fuzz.py",
        "total": total,
        **{
            name: {
                "payloads": found.count,
                "seconds": round(found.seconds, 1),
                "slowest_ms": round(1000 * found.slowest, 1),
                "memory_grown_mib": round(found.grown, 1),
                "by_codec": found.by(0),
                "by_damage": found.by(1),
            }
            for name, found in told.items()
        },
    }
    (EVIDENCE / "codec-fuzz.json").write_text(json.dumps(figures, indent=1) + "\n")

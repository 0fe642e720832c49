"""Damaged payloads: a named error or a tensor of the form that was claimed. A slice, and all of it as a campaign."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fuzz import ROOM, frames, into_codecs, into_frames, payloads
from progress import Progress, commit

from cutlayer.wire import frames as wire
from cutlayer.wire.codecs import BY_TAG

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"


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


# Of a million damaged pieces; tests/engines/grpc/test_hostile.py has the others.
BLOCK = 50_000
BLOCKS = {"codecs": (into_codecs, 8), "frames": (into_frames, 4)}


def block_of(part):
    """One block: `part` says where to, and its seed."""
    where, seed = part.split()
    found = BLOCKS[where][0](BLOCK, int(seed))
    assert found.grown < ROOM
    return {
        "count": found.count, "seconds": found.seconds, "slowest_ms": 1000 * found.slowest, "grown": found.grown,
        "by_codec": found.by(0), "by_damage": found.by(1), "commit": commit(),
    }  # fmt: skip


def added(blocks, table):
    """One table of outcomes over all blocks."""
    total = {}
    for name in sorted({name for block in blocks for name in block[table]}):
        rows = [block[table].get(name, {}) for block in blocks]
        total[name] = {outcome: sum(row.get(outcome, 0) for row in rows) for outcome in ("refused", "read")}
    return total


@pytest.mark.campaign
def test_the_campaign_of_damaged_payloads():
    """In blocks over every codec; what came of them is recorded. A campaign that is killed goes on."""
    wanted = [f"{where} {seed}" for where, (_, count) in BLOCKS.items() for seed in range(1, count + 1)]
    told = dict(Progress("codec-fuzz").parts(wanted, block_of))
    figures = {
        "command": "python -m pytest -m campaign tests/wire/codecs/test_fuzz.py",
        "commits": sorted({block["commit"] for block in told.values()}),
        "total": sum(block["count"] for block in told.values()),
    }
    for where, (_, count) in BLOCKS.items():
        blocks = [told[f"{where} {seed}"] for seed in range(1, count + 1)]
        figures[where] = {
            "payloads": sum(block["count"] for block in blocks),
            "seeds": [1, count],
            "seconds": round(sum(block["seconds"] for block in blocks), 1),
            "slowest_ms": round(max(block["slowest_ms"] for block in blocks), 1),
            "memory_grown_mib": round(sum(block["grown"] for block in blocks), 1),
            "by_codec": added(blocks, "by_codec"),
            "by_damage": added(blocks, "by_damage"),
        }
    assert set(figures["codecs"]["by_codec"]) == {repr(codec) for codec in BY_TAG.values()}
    assert sum(sum(row.values()) for row in figures["codecs"]["by_codec"].values()) == figures["codecs"]["payloads"]
    (EVIDENCE / "codec-fuzz.json").write_text(json.dumps(figures, indent=1) + "\n")


def test_the_page_says_what_was_recorded():
    recorded, page = (EVIDENCE / f"codec-fuzz{end}" for end in (".json", ".md"))
    figures, said = json.loads(recorded.read_text()), page.read_text()
    for part in (figures["codecs"], figures["frames"]):
        refused, read = (sum(one[kind] for one in part["by_damage"].values()) for kind in ("refused", "read"))
        counts = f"{part['payloads']:,} | {refused:,} | {read:,}"
        assert f"{counts} | {part['slowest_ms']:.0f} ms | {part['memory_grown_mib']:g} MiB" in said
    tag = figures["codecs"]["by_damage"]["tag"]
    assert f"Of {sum(tag.values()):,} buffers under another codec's number {tag['read']} were read" in said
    assert all(figures["codecs"]["by_damage"][one]["read"] == 0 for one in ("cut", "drop", "double", "lengthen"))

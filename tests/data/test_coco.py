"""COCO's outlines: polygons and run lengths by hand, and the official layout as small files made here."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cutlayer.core.batch import NO_LABEL
from cutlayer.data import COCO
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.check import check
from cutlayer.data.coco import OTHER_NAMES
from cutlayer.data.json_stream import read_lists
from cutlayer.data.masks import CLASSES
from cutlayer.data.outlines import of_runs, polygon, unpacked
from cutlayer.data.room import DECODERS, MEMORY
from cutlayer.data.rows import Rows

PERSON, DOG = CLASSES.index("person"), CLASSES.index("dog")
# As in the official files: ids with gaps, and things that VOC has no class for.
NAMED = {OTHER_NAMES.get(name, name): 10 + 3 * label for label, name in enumerate(CLASSES) if label}
CATEGORIES = [{"id": number, "name": name} for name, number in NAMED.items()] + [{"id": 99, "name": "kite"}]


def box(left, top, width, height):
    return [[left, top, left + width, top, left + width, top + height, left, top + height]]


def thing(image, name, segmentation, area=5000):
    number = 99 if name == "kite" else NAMED[name]
    return {"image_id": image, "category_id": number, "segmentation": segmentation, "area": area, "iscrowd": 0}


@pytest.fixture
def write(tmp_path):
    random = np.random.default_rng(0)

    def make(part, images, things, categories=CATEGORIES):
        folder = tmp_path / "coco" / f"{part}2017"
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "coco/annotations").mkdir(exist_ok=True)
        listed = []
        for number in range(images):
            name = f"{number:012d}.jpg"
            Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / name)
            listed.append({"id": 7 * number + 1, "file_name": name, "width": 30, "height": 20})
        told = {"info": {"a": [1]}, "images": listed, "annotations": things, "categories": categories}
        (tmp_path / f"coco/annotations/instances_{part}2017.json").write_text(json.dumps(told))

    return make


@pytest.fixture
def coco(write, tmp_path):
    runs = {"counts": [20 * 10 + 5, 10, 10, 10, 20 * 30 - 235], "size": [20, 30]}
    write(
        "train",
        4,
        [
            thing(1, "person", box(6, 2, 8, 10)),
            thing(1, "dog", box(10, 2, 8, 10)),
            thing(8, "kite", box(0, 0, 30, 20)),
            thing(15, "dog", runs, area=20),
            thing(22, "tv", box(5, 0, 4, 4) + box(20, 10, 4, 4)),
        ],
    )
    write("val", 2, [thing(1, "person", box(5, 0, 20, 20))])
    return tmp_path


def test_outlines_become_label_maps(coco):
    loaded = COCO(size=20).load(coco)  # the central square begins at column 5
    assert loaded.classes == CLASSES and len(loaded.train) == 4 and len(loaded.test) == 2
    first, kite, dog, tv = loaded.train.y
    wanted = torch.zeros(20, 20, dtype=torch.int64)
    wanted[2:12, 1:9], wanted[2:12, 5:13] = PERSON, DOG
    wanted[2:12, 5:9] = NO_LABEL  # of both
    assert torch.equal(first, wanted)
    assert (kite == 0).all()
    assert (dog == DOG).nonzero().tolist() == [[row, column] for row in range(5, 15) for column in (5, 6)]
    assert (tv == CLASSES.index("tvmonitor")).sum() == 32
    assert (loaded.test.y[0] == PERSON).all() and (loaded.test.y[1] == 0).all()


def test_pictures_with_little_to_see_are_left_out_on_request(coco):
    assert len(COCO(size=8, least=1001).load(coco).train) == 2
    assert len(COCO(size=8, least=1001).load(coco).test) == 2
    assert len(COCO(size=8, limit=3).load(coco).train) == 3
    with pytest.raises(CorruptData, match="the classes fill least=99999 pixels in none of its pictures"):
        COCO(size=8, least=99_999).load(coco)


def test_from_disk_it_is_the_same(coco, monkeypatch):
    whole = COCO(size=12).load(coco)
    monkeypatch.setenv(MEMORY, "1KB")
    monkeypatch.setenv(DECODERS, "0")
    disk = COCO(size=12).load(coco)
    assert isinstance(disk.train.y, Rows)
    order = torch.tensor([3, 0, 2, 1])
    assert torch.equal(disk.train.x[order], whole.train.x[order])
    assert torch.equal(disk.train.y[order], whole.train.y[order])


def test_bad_input_is_named(coco, write):
    path = coco / "coco/annotations/instances_train2017.json"
    (coco / "coco/train2017/000000000002.jpg").write_bytes(b"nothing")
    with pytest.raises(CorruptData, match=r"000000000002\.jpg is not usable"):
        COCO(size=8).load(coco)
    kept = COCO(size=8, skip_broken=True).load(coco)
    assert len(kept.train) == 3 and kept.notes[0].startswith("1 of 4 pictures do not decode")
    assert (kept.train.y[2] > 0).any()  # the maps still belong to their pictures
    Image.new("RGB", (10, 20)).save(coco / "coco/train2017/000000000002.jpg")
    with pytest.raises(CorruptData, match=r"it has 10x20 pixels, its outlines are for 30x20"):
        COCO(size=8).load(coco)
    (coco / "coco/train2017/000000000002.jpg").unlink()
    with pytest.raises(CorruptData, match=r"it names 1 pictures that are not there, the first .*000000000002"):
        COCO(size=8).load(coco)
    write("train", 1, [], CATEGORIES[1:])
    with pytest.raises(CorruptData, match="its categories lack 'aeroplane'"):
        COCO(size=8).load(coco)
    write("train", 1, [thing(1, "dog", [[1, 2, 3, 4]])])
    with pytest.raises(CorruptData, match="a polygon has three or more points, each x and y; got 4 numbers"):
        COCO(size=8).load(coco)
    write("train", 1, [thing(1, "dog", {"counts": [5, 5], "size": [20, 30]})])
    with pytest.raises(CorruptData, match="runs of 10 pixels for a picture of 30x20"):
        COCO(size=8).load(coco)
    for text in ('{"images": [', "[]", '{"images": 3, "annotations": [], "categories": []}'):
        path.write_text(text)
        with pytest.raises(CorruptData, match=r"not JSON of the expected form|it has no list 'images'|lack"):
            COCO(size=8).load(coco)
    path.unlink()
    with pytest.raises(MissingData, match=r"there is no coco/annotations/instances_train2017\.json"):
        COCO(size=8).load(coco)


def test_check_knows_the_layout(coco):
    row = {row["name"]: row for row in check(coco)}["COCO"]
    assert row["found"] and row["detail"] == "it has 4 + 2 samples, it should have 118,287 + 5,000"


# ----------------------------------------------------------------------------- drawing
def test_a_polygon_has_the_pixels_whose_centre_it_has():
    triangle = polygon(np.array([0, 0, 4, 0, 0, 4.0]), 5, 5)
    assert triangle.astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1] + [0] * 4, [0] * 5, [0] * 5]
    # A hole: the same square within, once more around.
    ring = polygon(np.array([0, 0, 6, 0, 6, 6, 0, 6, 0, 0, 2, 2, 4, 2, 4, 4, 2, 4, 2, 2.0]), 6, 6)
    assert ring.sum() == 36 - 4 and not ring[2:4, 2:4].any()
    assert polygon(np.array([-9, -9, 99, -9, 99, 99, -9, 99.0]), 7, 3).all()  # what lies outside is cut off


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-40, 340), st.integers(-40, 240)), min_size=3, max_size=7))
def test_a_polygon_is_that_of_a_slow_test_of_every_pixel(points):
    corners = [(x / 10 + 0.013, y / 10 + 0.017) for x, y in points]
    drawn = polygon(np.array(corners).reshape(-1), 30, 20)
    sides = list(zip(corners, corners[1:] + corners[:1], strict=True))
    for row in range(0, 20, 3):
        for column in range(0, 30, 4):
            px, py = column + 0.5, row + 0.5
            crossed = sum(
                (y0 > py) != (y1 > py) and px > (x1 - x0) * (py - y0) / (y1 - y0) + x0 for (x0, y0), (x1, y1) in sides
            )
            assert drawn[row, column] == crossed % 2


def packed(runs):
    """COCO's text of run lengths, after its published description."""
    text = ""
    for place, run in enumerate(runs):
        number = run - (runs[place - 2] if place > 2 else 0)
        while True:
            bits, number = number & 31, number >> 5
            done = number == (-1 if bits & 16 else 0)
            text += chr(48 + bits + (0 if done else 32))
            if done:
                break
    return text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 100_000), max_size=9))
def test_run_lengths_come_back_out_of_their_text(runs):
    assert unpacked(packed(runs)) == runs


def test_run_lengths_of_a_known_text():
    # A picture of 3x3 with its middle pixel: four outside, one inside, four outside.
    assert unpacked("414") == [4, 1, 4]
    assert of_runs(np.array([4, 1, 4]), 3, 3).nonzero()[0].tolist() == [1]
    assert of_runs(np.array([1, 2, 3]), 3, 2).astype(int).tolist() == [[0, 1, 0], [1, 0, 0]]  # down the columns


def test_lists_of_a_file_come_one_by_one(tmp_path):
    path, seen = tmp_path / "a.json", []
    path.write_text(' { "x" : {"a": [1, "]"]}, "a":[ {"b": 1} , [2] ],\n"c" : [] , "d":"}" } ')
    read_lists(path, {"a": seen.append, "c": seen.append})
    assert seen == [{"b": 1}, [2]]
    with pytest.raises(CorruptData, match="it has no list 'd'"):
        read_lists(path, {"d": seen.append})

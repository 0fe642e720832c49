"""Predictions one at a time: what each takes and weighs, who is refused, and that a batch finds the same."""

import csv
import io
import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cutlayer.data import Digits, ImageFolder, Npz, Table, Unlabelled
from cutlayer.engines.folder import learnt_from
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.deploy import Service, join
from cutlayer.engines.local import start
from cutlayer.engines.predict import Inputs, Over, Predictions, predict, refuse_stream
from cutlayer.guards import C3, Chain, FedLite, KAnonymous, LightSplit, NoPeek, Prism, Quantize, SplitFC
from cutlayer.nets import MLP, LeNet, Segmenter
from cutlayer.training.facts.link import Link
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import UShaped, Vanilla

torch.set_num_threads(1)

PLAN = Plan(net=LeNet(), data=Digits(limit=80), epochs=1, batch_size=16, val_share=0.0, private_seed=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "a"
    start.train(PLAN, folder)
    return folder


def rows(found):
    return list(csv.DictReader(io.StringIO(found.as_csv())))


def test_a_stream_finds_what_batches_find_and_says_what_each_took(trained):
    one, many = (predict(trained, Inputs(limit=9, **way)) for way in ({"stream": True}, {"size": 4}))
    assert torch.equal(one.found, many.found) and torch.allclose(one.confidence, many.confidence, atol=1e-5)
    told = one.summary()
    assert told["mode"] == "stream" and told["samples"] == told["batches"] == 9
    assert many.summary()["mode"] == "batch" and many.summary()["batches"] in (2, 3)
    assert 0 < told["latency_ms"]["median"] <= told["latency_ms"]["p95"] <= told["latency_ms"]["p99"]
    lines = rows(one)
    assert list(lines[0]) == ["sample", "predicted", "confidence", "label", "ms", "bytes_up", "bytes_down"]
    assert sum(int(line["bytes_up"]) for line in lines) == pytest.approx(9 * told["bytes_up"])
    assert [int(line["sample"]) for line in lines] == list(range(9))
    # 32x6x6 floats behind a ReLU, and a frame around them, for each sample alone
    assert all(64 <= int(line["bytes_up"]) <= 4 * 32 * 6 * 6 + 64 + 1024 for line in lines)
    assert list(rows(many)[0]) == ["sample", "predicted", "confidence", "label"]


def test_a_run_that_has_no_best_epoch_predicts_with_what_it_has(tmp_path):
    start.train(replace(PLAN, epochs=0, patience=2, val_share=0.2), tmp_path / "untrained")
    start.train(replace(PLAN, epochs=0, val_share=0.2), tmp_path / "usual")
    one, other = (predict(tmp_path / name, Inputs(limit=9)) for name in ("untrained", "usual"))
    assert torch.equal(one.found, other.found)


def test_quantiles_and_bytes_are_those_of_the_messages():
    labels = torch.arange(4) % 2
    found = Predictions(
        ("a", "b"), labels, torch.ones(4), labels, [0.001, 0.002, 0.003, 0.014], [100, 200, 300, 400], [10] * 4, True,
        Link(rate=8e3, rtt=0.5, down=80.0),
    )  # fmt: skip
    told = found.summary()
    assert told["latency_ms"]["median"] == pytest.approx(2.5) and told["latency_ms"]["p95"] == pytest.approx(12.35)
    assert (told["bytes_up"], told["bytes_down"], told["accuracy"]) == (250, 10, 1.0)
    # a byte takes a millisecond up and a tenth of a second down
    over = [1 + 100 + 1000 + 500, 2 + 200 + 1000 + 500, 3 + 300 + 1000 + 500, 14 + 400 + 1000 + 500]
    assert told["link"]["latency_ms"]["median"] == pytest.approx((over[1] + over[2]) / 2)
    assert told["link"]["samples_per_second"] == pytest.approx(4 / (sum(over) / 1e3))


def test_a_link_that_lets_less_than_a_sample_a_second_through_is_said_to(trained, command):
    code, _, err = command("predict", trained, "--stream", "--limit", 2, "--link", "8kbit,2s", "--threads", 1)
    assert code == 0 and re.search(r"over 8kbit,2s: .* a sample, 0\.\d+ a second", err), err


def test_a_network_that_is_whole_at_its_client_waits_for_no_link():
    link, none, known = Link(rate=1e6, rtt=0.1), [0, 0], torch.zeros(2)
    found = Predictions(("a",), known, torch.ones(2), known, [0.01, 0.02], none, none, stream=True, link=link)
    told = found.summary()
    assert told["link"]["latency_ms"] == told["latency_ms"]


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (KAnonymous(k=3), "needs 3 samples at a time"),
        (C3(ratio=4), "leave out --stream"),
        (FedLite(), "follows from its whole batch"),
        (SplitFC(), "needs 2 samples at a time"),
        (Chain(LightSplit(ratio=4), KAnonymous(k=2)), "needs 2 samples at a time"),
    ],
    ids=repr,
)
def test_guards_that_need_company_are_refused(guard, words):
    with pytest.raises(ValueError, match=words):
        refuse_stream(Plan(guard=guard))


@pytest.mark.parametrize(
    "guard",
    [LightSplit(ratio=4), Quantize(bits=4), Chain(LightSplit(ratio=4), NoPeek()), NoPeek(), Prism(privacy="dcor")],
    ids=repr,
)
def test_guards_that_need_none_are_not(guard):
    refuse_stream(Plan(guard=guard))


# ------------------------------------------------------------------------------ the command
def test_the_command_streams(command, trained, tmp_path):
    code, out, err = command(
        "predict", trained, "--stream", "--limit", 5, "--link", "1mbit,100ms", "--threads", 1, "--json",
        "--out", tmp_path / "a.csv",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    assert told["mode"] == "stream" and told["link"]["latency_ms"]["median"] > 100 + told["latency_ms"]["median"]
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 6
    code, _, err = command("predict", trained, "--stream", "--limit", 5, "--link", "1mbit,100ms", "--threads", 1)
    assert code == 0 and "ms a sample" in err.replace(")", "") and "over 1mbit,100ms" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stream", "--batch-size", 4], "leave out --batch-size"),
        (["--link", "fast"], "like 20mbit,40ms"),
        (["--link", "1mbit", "--server", "x:1", "--as", "a", "--insecure"], "a real one"),
        (["--batch-size", 0], "--batch-size at least 1"),
    ],
)
def test_options_that_do_not_go_together(command, trained, options, words):
    code, _, err = command("predict", trained, "--threads", 1, *options)
    assert code == 1 and words in err and err.count("\n") == 1


# ------------------------------------------------------------------------- with a real server
@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_a_served_network_streams_label_maps(protocol, tmp_path):
    """Segmentation over gRPC: labels of pixels travel where they do, and each sample is answered by itself."""
    pytest.importorskip("grpc")
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "maps.npz",
        x=draw.integers(0, 256, (20, 3, 16, 16)).astype(np.uint8),
        y=draw.integers(0, 3, (20, 16, 16)),
    )
    data = Npz(str(tmp_path / "maps.npz"))
    plan = Plan(net=Segmenter(), data=data, protocol=protocol, epochs=1, batch_size=6, val_share=0.0, private_seed=1)
    service = Service(plan.public(), ["a"], tmp_path / "server", listen="127.0.0.1:0", identity=None)
    served = threading.Thread(target=lambda: service.run(stay=True), daemon=True)
    served.start()
    address = f"127.0.0.1:{service.network.port}"
    try:
        result = join(plan, "a", tmp_path / "a", address=Address(address)).run()
        found = predict(tmp_path / "a", Inputs(stream=True), Over(address, "a"))
        together = predict(tmp_path / "a", over=Over(address, "a"))
        np.savez(tmp_path / "wide.npz", x=np.zeros((20, 3, 16, 24), np.uint8), y=draw.integers(0, 3, (20, 16, 24)))
        with pytest.raises(ValueError, match=r"are 3 x 16 x 24, and the network in .* has learnt from 3 x 16 x 16"):
            predict(tmp_path / "a", Inputs(Npz(str(tmp_path / "wide.npz"))), Over(address, "a"))
        np.savez(tmp_path / "few.npz", x=np.zeros((20, 3, 16, 16), np.uint8), y=draw.integers(0, 2, (20, 16, 16)))
        assert len(predict(tmp_path / "a", Inputs(Npz(str(tmp_path / "few.npz"))), Over(address, "a")).classes) == 3
    finally:
        service.stop()
        served.join(30)
    assert result["accuracy"] == pytest.approx(found.summary()["accuracy"], abs=0.02)
    assert torch.equal(found.found, together.found) and found.found.shape == (2, 16, 16)
    assert all(count > 4 * 64 * 4 for count in found.bytes_down)


# ------------------------------------------------------------------------- samples whose labels nobody knows
def mine(path, shape=(28, 28), count=9, **more):
    np.savez(path, x=np.random.default_rng(1).integers(0, 255, (count, *shape), dtype=np.uint8), **more)
    return Npz(str(path))


def test_rows_without_labels_are_predicted_all_of_them_as_with_labels(command, trained, tmp_path):
    data = mine(tmp_path / "new.npz")
    code, _, err = command("predict", trained, "--data", repr(data), "--out", tmp_path / "new.csv")
    assert code == 0 and "9 samples, no labels to compare with" in err and "accuracy" not in err
    lines = list(csv.DictReader((tmp_path / "new.csv").open()))
    assert list(lines[0]) == ["sample", "predicted", "confidence"] and len(lines) == 9
    known = mine(tmp_path / "known.npz", y=np.arange(9) % 2, x_test=np.load(tmp_path / "new.npz")["x"],
                 y_test=np.arange(9) % 10, classes=[str(name) for name in range(10)])  # fmt: skip
    assert torch.equal(predict(trained, Inputs(data)).found, predict(trained, Inputs(known)).found)


def test_a_file_of_which_a_part_would_train_says_so(command, trained, tmp_path):
    data = mine(tmp_path / "mine.npz", count=40, y=np.arange(40) % 10)
    code, _, err = command("predict", trained, "--data", repr(data))
    assert code == 0 and "4 samples" in err and f"36 samples of {data!r} would train" in err


def csv_file(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def test_a_table_without_its_target_is_predicted_whole_as_with_it(command, tmp_path):
    people = [[20 + n, "fm"[n % 2], ("low", "high")[n % 3 == 0]] for n in range(40)]
    data = Table(csv_file(tmp_path / "a.csv", [["age", "sex", "risk"], *people]), "risk")
    plan = Plan(net=MLP(widths=(4, 4)), data=data, epochs=1, batch_size=16, val_share=0.0, private_seed=1)
    start.train(plan, tmp_path / "run")
    held = data.load().test.x  # in the file's order, but of another: ages, which are whole numbers, are told by these
    ages = [round(float(row[0]) * data.load().scale.spread[0] + data.load().scale.mean[0]) for row in held]
    few = [["sex", "age"], *([sex, age] for age, sex, _ in people if age in ages)]
    path = csv_file(tmp_path / "new.csv", few)
    found, known = (predict(tmp_path / "run", Inputs(source)) for source in (Table(path, "risk"), data))
    assert not found.known and len(found.found) == len(held) == 4 and found.left == 0 and known.left == 36
    assert torch.equal(found.found, known.found) and torch.equal(found.confidence, known.confidence)
    code, _, err = command("predict", tmp_path / "run", "--data", repr(Table(path, "risk")))
    assert code == 0 and "4 samples, no labels to compare with" in err and "would train" not in err
    for changed, words in [
        ([*few, ["x", 20]], r"the column 'sex' of .* has the value 'x', which was not learnt: there are f, m"),
        ([["sex", "years"], *few[1:]], r"has the column 'years', which was not learnt from"),
        ([["sex"], ["f"]], "has no column 'age'"),
        ([["sex", "age"], ["f", "old"]], "the column 'age' of .* holds texts, and numbers were learnt"),
    ]:
        with pytest.raises(ValueError, match=words):
            predict(tmp_path / "run", Inputs(Table(csv_file(tmp_path / "new.csv", changed), "risk")))


def test_a_prediction_says_which_row_of_the_file_it_is_of(tmp_path):
    """Of a file of which a part is set aside, `sample` counts that part alone."""
    people = [[20 + n, ("low", "high")[n % 3 == 0]] for n in range(40)]
    lines = [["age", "risk"], *people[:7], [], *people[7:]]  # a blank line is no row, and still a line
    data = Table(csv_file(tmp_path / "a.csv", lines), "risk")
    plan = Plan(net=MLP(widths=(4, 4)), data=data, epochs=1, batch_size=16, val_share=0.0, private_seed=1)
    start.train(plan, tmp_path / "run")
    found = rows(predict(tmp_path / "run", Inputs(data, limit=3)))
    scale, held = data.load().scale, data.load().test.x[:3, 0]
    ages = (held.double() * scale.spread[0] + scale.mean[0]).round().int().tolist()
    assert [int(lines[int(one["row"]) - 1][0]) for one in found] == ages
    assert [lines[int(one["row"]) - 1][1] for one in found] == [one["label"] for one in found]
    whole = Table(csv_file(tmp_path / "new.csv", [["age"], *([age] for age, _ in people)]), "risk")
    assert all("row" not in one for one in rows(predict(tmp_path / "run", Inputs(whole)))), "sample is the row"


def test_a_picture_that_is_predicted_is_named(trained, tmp_path):
    x = np.load(mine(tmp_path / "new.npz", count=40).path)["x"]
    for number, picture in enumerate(x):
        (tmp_path / "pictures" / f"{number % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{number % 10}" / f"{number}.png")
    data = ImageFolder(str(tmp_path / "pictures"))
    named = [Path(one["file"]) for one in rows(predict(trained, Inputs(data)))]
    held = data.load().test
    assert len(named) == len(held) and all(
        torch.equal(torch.from_numpy(np.array(Image.open(file))), picture[0])
        for file, picture in zip(named, held.x, strict=True)
    )


def test_pictures_without_classes_are_predicted_all_in_the_order_of_their_names(trained, tmp_path):
    x = np.load(mine(tmp_path / "new.npz", count=3).path)["x"]
    for name, picture in zip("abc", x, strict=True):
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
    here, arrays = (predict(trained, Inputs(one)) for one in (Unlabelled(str(tmp_path)), Npz(f"{tmp_path}/new.npz")))
    assert torch.equal(here.found, arrays.found) and not here.known and len(here.found) == 3
    assert torch.equal(here.confidence, arrays.confidence)
    (tmp_path / "b.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"take out those that do not decode: 1 of 3 pictures .*b\.png"):
        predict(trained, Inputs(Unlabelled(str(tmp_path), skip_broken=True)))


def test_a_part_that_would_train_is_said_of_every_source(command, trained, tmp_path):
    data = Digits(limit=30)
    code, _, err = command("predict", trained, "--data", repr(data), "--limit", 5)
    assert code == 0 and "30 samples of Digits(limit=30) would train, and were not predicted" in err
    code, out, _ = command("predict", trained, "--data", repr(data), "--limit", 5, "--json")
    assert json.loads(out)["left_for_training"] == 30
    code, out, _ = command("predict", trained, "--limit", 5, "--json")
    assert "left_for_training" not in json.loads(out), "the samples that it has learnt from are not asked for"


def test_rows_of_another_shape_are_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="are 1 x 8 x 8, and this network has learnt from 1 x 28 x 28"):
        predict(trained, Inputs(mine(tmp_path / "small.npz", (8, 8))))
    with pytest.raises(ValueError, match=r"are 1 x 8 x 8, and the network in .* has learnt from 1 x 28 x 28"):
        predict(trained, Inputs(mine(tmp_path / "labelled.npz", (8, 8), 40, y=np.arange(40) % 10)))


def test_a_site_that_lacks_a_class_predicts_and_the_others_have_names_as_well(trained, tmp_path):
    """A predicted class beyond those of the file was a traceback when the table was written."""
    found = predict(trained, Inputs(mine(tmp_path / "few.npz", count=60, y=np.arange(60) % 2)))
    assert found.classes == tuple(map(str, range(10))) and len(rows(found)) == 6


def test_a_clients_part_without_its_server_is_a_sentence(trained, tmp_path):
    for name in ("plan.json", "private.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "client.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="give --server HOST:PORT --as NAME"):
        predict(tmp_path)


def test_a_site_predicts_its_own_data_and_rows_in_their_form(tmp_path):
    """The plan that all sites agreed on names data of another shape: the folder says what a site joined with."""
    pytest.importorskip("grpc")
    draw, y = np.random.default_rng(0), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=draw.random((60, 4)), y=y)
    np.savez(tmp_path / "new.npz", x=draw.random((5, 4)))
    plan = Plan(net=MLP(widths=(4, 4)), epochs=1, batch_size=16, private_seed=1)
    service = Service(plan.public(), ["a"], tmp_path / "server", listen="127.0.0.1:0", identity=None)
    served = threading.Thread(target=lambda: service.run(stay=True), daemon=True)
    served.start()
    address = f"127.0.0.1:{service.network.port}"
    try:
        own = Npz(str(tmp_path / "own.npz"))
        join(plan, "a", tmp_path / "a", address=Address(address), data=own).run()
        held, new = (
            predict(tmp_path / "a", Inputs(data), Over(address, "a"))
            for data in (None, Npz(str(tmp_path / "new.npz")))
        )
    finally:
        service.stop()
        served.join(30)
    assert torch.equal(held.labels, own.load().test.y) and len(new.found) == 5 and not new.known
    assert (tmp_path / "a" / "own_data.json").stat().st_mode & 0o77 == 0, "where its data lie"


def test_data_of_a_site_that_no_text_names_are_asked_for(tmp_path):
    (tmp_path / "own_data.json").write_text(json.dumps({"data": "Mine(7)"}))
    with pytest.raises(ValueError, match=r"own_data\.json.*name the data by --data"):
        learnt_from(tmp_path, PLAN)


def test_label_maps_of_another_size_than_was_learnt_are_refused(tmp_path):
    """Convolutions read pictures of any size, and the tail gives maps of the size it has learnt."""
    draw = np.random.default_rng(0)
    for name, side in (("small", 16), ("large", 32)):
        x = draw.random((20, 3, side, side)).astype("float32")
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x[:, 0] > 0.5).astype("int64"))
    data = Npz(str(tmp_path / "small.npz"))
    start.train(Plan(net=Segmenter(), data=data, epochs=0, batch_size=8, private_seed=1), tmp_path / "run")
    with pytest.raises(ValueError, match=r"the samples are 3 x 32 x 32, and the network in .* from 3 x 16 x 16"):
        predict(tmp_path / "run", Inputs(data=Npz(str(tmp_path / "large.npz")))).summary()

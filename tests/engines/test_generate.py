"""Writing by split inference: the cache changes nothing, and nothing but z leaves."""

import json
import threading
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentences import sentences, write
from torch import nn
from typer.testing import CliRunner

from cutlayer import Plan
from cutlayer.cli.app import app
from cutlayer.core.batch import PAD, Batch, Task
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, Message, through
from cutlayer.core.server import Server
from cutlayer.data import Fashion, Npz, Texts
from cutlayer.data.tokenizer import pieces, read_tokenizer
from cutlayer.engines.generate import RememberingHead, Writing, continued, generate, readable, remembering
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.deploy import Service, join
from cutlayer.engines.local import start
from cutlayer.engines.predict import Inputs, Over
from cutlayer.engines.predict import predict as predictions
from cutlayer.guards import KAnonymous, NoGuard, Noise, SplitFC
from cutlayer.nets import TextDecoder
from cutlayer.nets.lora import LoRA
from cutlayer.nets.server_network import ServerNetwork
from cutlayer.training.growing_text import GROWS, KeepsTexts, SendsNewPlaces, keeping_texts
from cutlayer.training.plan.optimizers import Adam
from cutlayer.training.step import predict

LENGTH, WORDS = 16, 40


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small language model of the grammar's sentences; about two seconds."""
    folder = tmp_path_factory.mktemp("writing")
    write(folder / "a.jsonl")
    fast = Adam(lr=3e-3)
    plan = Plan(
        net=TextDecoder(layers=2, width=32, vocabulary=WORDS),
        data=Texts(str(folder / "a.jsonl"), length=LENGTH, vocabulary=WORDS, next_token=True),
        epochs=5,
        batch_size=16,
        client_optimizer=fast,
        server_optimizer=fast,
        private_seed=1,
    )
    result = start.train(plan, folder / "run")
    return folder / "run", plan, result


@pytest.fixture(scope="module")
def client(run):
    return start.ready(run[1], None, "cpu").networks[0]


def test_a_next_token_costs_perplexity_and_not_only_accuracy(run):
    """The grammar leaves a choice among three or four words at most places, and none at the others."""
    _, _, result = run
    assert 1.0 < result["perplexity"] < 4.0 < WORDS
    history = [json.loads(line) for line in (run[0] / "history.jsonl").read_text().splitlines()]
    assert history[-1]["val_perplexity"] < history[0]["val_perplexity"]


def test_it_goes_on_as_the_grammar_does(run):
    found = generate(run[0], "the harbour is", Writing(tokens=6))
    assert found.text.startswith("the harbour is a ")
    assert found.new == 6 and len(found.seconds) == 6 and not found.full
    assert len(set(found.bytes_up[1:])) == len(set(found.bytes_down[1:])) == 1, "a new token costs what the last did"
    assert found.bytes_up[0] - found.bytes_up[1] == found.bytes_down[0] - found.bytes_down[1] == 2 * 4 * 32, (
        "a prompt of 3"
    )


def written(run, guard, sender=None, lost=-1):
    """(ids, what went up) by a network behind a guard; at message `lost` the server has forgotten the text."""
    client = start.ready(replace(run[1], guard=guard), None, "cpu").networks[0]
    ids, sent = [3, 7, 2], []

    def listening(message, send):
        sent.append(message["z"])
        return message.reply() if len(sent) - 1 == lost else send(message)

    with client.remote.watched(sender) if sender else nullcontext(), client.remote.watched(listening):
        for token in continued(client, ids, LENGTH, Writing(6, 0.7), 5, sender):
            ids.append(token)
    return ids, sent


def test_sending_new_places_alone_writes_the_same(run):
    plain, whole = written(run, NoGuard())
    ids, sent = written(run, NoGuard(), SendsNewPlaces())
    assert ids == plain and [z.shape[1] for z in whole] == [LENGTH] * 6
    assert [z.shape[1] for z in sent] == [3, 1, 1, 1, 1, 1]
    assert torch.equal(torch.cat(sent, 1), whole[-1][:, :8])


def test_a_server_that_has_a_text_no_longer_is_told_it_again_and_learns_nothing_more(run):
    """With noise of its own for every message the server could average: each place leaves with one draw."""
    ids, sent = written(run, Noise(scale=0.5), SendsNewPlaces(), lost=3)
    assert [z.shape[1] for z in sent] == [3, 1, 1, 1, 6, 1, 1]
    assert torch.equal(sent[4], torch.cat(sent[:4], 1)), "the same rows, with the noise they had"
    assert ids == written(run, Noise(scale=0.5), SendsNewPlaces())[0]
    anew = written(run, Noise(scale=0.5))[1]
    assert not torch.equal(anew[0][:, :3], anew[1][:, :3]), "sent whole, the same places have other noise every time"


def test_two_texts_of_one_client_do_not_mix():
    heard = []

    def body(message):
        heard.append(message["z"])
        return message.reply(u=message["z"])

    door = through([KeepsTexts((4, 2))], body)

    def say(text, number, first, *rows):
        z = torch.tensor(rows, dtype=torch.float32)[None, :, None].expand(1, len(rows), 2)
        return door(Message(Kind.PREDICT, 0, 0, {"z": z, GROWS: torch.tensor([text, number, first])}))

    assert say(1, 0, 0, 5, 6)["u"].shape == (1, 2, 2)
    assert say(1, 1, 2, 7)["u"].tolist() == [[[7, 7]]] and heard[-1][0, :, 0].tolist() == [5, 6, 7, 0]
    assert say(1, 1, 2, 7)["u"].tolist() == [[[7, 7]]], "asked again"
    assert not say(2, 1, 1, 9).tensors and not say(1, 3, 3, 9).tensors, "another text, and one that lacks a place"
    say(2, 0, 0, 1)
    assert heard[-1][0, :, 0].tolist() == [1, 0, 0, 0] and not say(1, 2, 3, 8).tensors


@pytest.mark.parametrize("adapters", [None, LoRA(rank=2)], ids=repr)
def test_a_server_that_keeps_keys_and_values_answers_as_one_that_computes_all(run, adapters):
    """To rounding: one place's products are summed in another order than those of all."""
    server = start.ready(replace(run[1], adapters=adapters), None, "cpu").server
    body, computed, draw = server.body.body, [], torch.Generator().manual_seed(0)
    slow = through([KeepsTexts((LENGTH, 32))], Server(server.body).handle)
    body[0].register_forward_hook(lambda block, given, made: computed.append(made.shape[1]))

    def asked(client, text, number, first, places):
        z = torch.randn(1, places, 32, generator=draw)
        where = {"z": z, GROWS: torch.tensor([text, number, first])}
        answers = [door(Message(Kind.PREDICT, client, 0, where)) for door in (server.handle, slow)]
        if answers[1].tensors:
            torch.testing.assert_close(answers[0]["u"], answers[1]["u"], rtol=1e-4, atol=1e-5)
        assert answers[0].tensors.keys() == answers[1].tensors.keys()
        quick = computed[0] if computed else None
        computed.clear()
        return quick

    assert asked(0, 1, 0, 0, 3) == 3 and asked(0, 1, 1, 3, 1) == asked(0, 1, 2, 4, 1) == 1
    assert asked(1, 1, 0, 0, 2) == 2 and asked(0, 1, 3, 5, 2) == 2, "another client's text is another"
    assert asked(0, 1, 3, 5, 2) == 2, "asked again"
    assert asked(0, 1, 4, 2, 2) == 2 and asked(0, 1, 5, 9, 1) == 6, "written over, and after a gap"
    with torch.no_grad():
        next(p for p in body.parameters() if p.requires_grad).mul_(1.5)
    assert asked(0, 1, 6, 10, 1) == 11, "of weights that have changed all is computed again"
    assert asked(0, 2, 1, 3, 1) is None and asked(0, 2, 0, 0, 2) == 2


@pytest.mark.parametrize("before", [{}, {"lift": nn.Linear(32, 32)}, {"fill": nn.Linear(32, 32)}], ids=repr)
def test_behind_a_part_that_may_look_at_all_places_a_server_computes_all(run, before):
    body, computed = run[1].net.body((LENGTH,)), []
    body[0].register_forward_hook(lambda block, given, made: computed.append(made.shape[1]))
    network = ServerNetwork(body, **before)
    door = through([*keeping_texts(run[1], Task((LENGTH,), WORDS, {}, WORDS), network)], Server(network).handle)
    for number in (0, 1):
        where = {"z": torch.ones(1, 1, 32), GROWS: torch.tensor([1, number, number])}
        assert door(Message(Kind.PREDICT, 0, 0, where))["u"].shape == (1, 1, 32)
    assert computed == ([LENGTH] * 2 if before else [1, 1])


def padded(ids):
    return torch.tensor([ids + [PAD] * (LENGTH - len(ids))])


def test_the_cache_changes_no_score_and_computes_each_token_once(client):
    ids = [3, 7, 2, 9, 4, 5]
    split, computed = remembering(client.split), []
    assert isinstance(split.head, RememberingHead) and split.tail is client.split.tail
    split.head.head.words.register_forward_hook(lambda module, given, made: computed.append(given[0].shape[1]))
    cached = type(client)(client.number, split, None, client.remote)
    for end in (3, 4, 6):
        batch = Batch(padded(ids[:end]), padded(ids[:end]))
        plain, quick = (predict(one, [batch])[0, :, :end] for one in (client, cached))
        torch.testing.assert_close(quick, plain)
    head_calls = [count for count in computed if count != LENGTH]
    assert head_calls == [3, 1, 2]


def test_later_tokens_change_no_earlier_score(client):
    one, other = padded([3, 7, 2, 9]), padded([3, 7, 5, 8])
    first, second = (predict(client, [Batch(x, x)])[0] for x in (one, other))
    assert torch.equal(first[:, :2], second[:, :2]) and not torch.allclose(first[:, 2], second[:, 2])


def test_what_is_drawn_follows_from_the_seed(client):
    def some(seed, temperature):
        ids = [3, 7]
        for token in continued(client, ids, LENGTH, Writing(8, temperature, seed), 0):
            ids.append(token)
        return ids

    assert some(0, 1.5) == some(0, 1.5) != some(1, 1.5)
    assert some(0, 0.0) == some(1, 0.0)
    assert len(some(0, 0.0)) == 10 and min(some(2, 3.0)) > 1  # neither padding nor unknown words


def test_a_text_ends_where_the_network_does(run):
    found = generate(run[0], "the harbour is", Writing(tokens=99))
    assert found.full and found.new == LENGTH + 1 - 3


def test_the_command_writes_and_says_what_it_cost(run):
    told = CliRunner().invoke(app, ["generate", str(run[0]), "the orchard", "--tokens", "3", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout.splitlines()[-1])["tokens"] == 3


@pytest.mark.parametrize(
    ("prompt", "why"),
    [("", "the prompt has no word"), ("word " * 20, "the prompt has 20 tokens and the network reads 16")],
)
def test_prompts_that_cannot_be_gone_on_with(run, prompt, why):
    with pytest.raises(ValueError, match=why):
        generate(run[0], prompt)


def test_the_words_of_a_run_are_kept_and_used(run, tmp_path):
    """Texts of other words are read by those that the network knows."""
    assert (run[0] / "words.txt").stat().st_mode & 0o077 == 0
    write(tmp_path / "b.jsonl", [("zebra zebra zebra the harbour is a dull film", "x")] * 4)
    other = Texts(str(tmp_path / "b.jsonl"), length=LENGTH, vocabulary=WORDS, next_token=True)
    told = predictions(run[0], Inputs(data=other)).summary()
    assert told["perplexity"] > 1 and told["accuracy"] > 0  # with the words of b.jsonl nothing would be right


def test_predictions_of_texts_have_a_line_each(run):
    found = predictions(run[0], Inputs(limit=5))
    lines = found.as_csv().splitlines()
    assert lines[0] == "sample,perplexity,accuracy,confidence,row" and len(lines) == 6
    whole = predictions(run[0])
    assert whole.summary()["perplexity"] == pytest.approx(run[2]["perplexity"], rel=1e-5)
    assert whole.summary()["accuracy"] == pytest.approx(run[2]["accuracy"], rel=1e-5)


def test_a_served_network_writes_what_it_writes_in_one_process(tmp_path):
    """The server is asked once for each token, and has seen numbers alone."""
    pytest.importorskip("grpc")
    write(tmp_path / "a.jsonl", sentences()[:40])
    plan = Plan(
        net=TextDecoder(width=8, vocabulary=WORDS),
        data=Texts(str(tmp_path / "a.jsonl"), length=LENGTH, vocabulary=WORDS, next_token=True),
        epochs=1,
        batch_size=16,
        val_share=0.0,
        private_seed=1,
    )
    service = Service(plan.public(), ["a"], tmp_path / "server", listen="127.0.0.1:0", identity=None)
    served = threading.Thread(target=lambda: service.run(stay=True), daemon=True)
    served.start()
    address = f"127.0.0.1:{service.network.port}"
    try:
        # The site's own texts: the plan that all sites know names no file of anybody's.
        join(replace(plan, data=Fashion()), "a", tmp_path / "a", address=Address(address), data=plan.data).run()
        there = generate(tmp_path / "a", "the harbour", Writing(tokens=4), Over(address, "a"))
    finally:
        service.stop()
        served.join(30)
    start.train(plan, tmp_path / "here")
    here = generate(tmp_path / "here", "the harbour", Writing(tokens=4))
    assert there.ids == here.ids and there.new == 4
    assert there.bytes_up == here.bytes_up and len(set(there.bytes_up[1:])) == 1


def test_answers_that_are_packed_over_a_batch_come_as_numbers_where_a_place_is_alone(run, tmp_path):
    """Nobody who writes one text can give it a larger batch: what SplitFC cannot pack crosses as it is."""
    plan = replace(run[1], epochs=1, compression=Compression(answers=SplitFC(budget=1.0)))
    start.train(plan, tmp_path / "run")
    found = generate(tmp_path / "run", "the harbour is", Writing(tokens=3))
    assert found.new == 3 and found.bytes_down[1] > 4 * 32
    assert predictions(tmp_path / "run").summary()["bytes_down"] < LENGTH * 32, "batches are packed as they were"


def test_a_token_without_a_word_is_never_drawn(run, tmp_path):
    """A vocabulary may have room for more words than the texts have, as 5,000 ids for forty words."""
    roomy = replace(run[1].data, vocabulary=400)
    plan = replace(run[1], net=replace(run[1].net, vocabulary=400), data=roomy, epochs=0)
    start.train(plan, tmp_path / "run")
    words = len(roomy.load().tokenizer.words)
    assert words < 100
    assert max(generate(tmp_path / "run", "the harbour", Writing(99, 9.0)).ids) < words


def test_every_token_with_a_word_can_be_written_and_the_unknown_one_never(run, client, tmp_path):
    """In a tokenizer.json the unknown word may be any id, and id 1 an ordinary word."""
    pytest.importorskip("tokenizers")
    ids = {word: place for place, word in enumerate(["[PAD]", "the", "film", "<unk>"])}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    words = readable(read_tokenizer(tmp_path / "tokenizer.json"))
    drawn = [token for seed in range(3)
             for token in continued(client, [1, 2], LENGTH, Writing(99, 1e6, seed), 0, words=words)]  # fmt: skip
    assert set(drawn) == {1, 2}


def test_a_text_goes_on_before_the_sign_that_ends_a_whole_one_and_stops_there(run, tmp_path):
    """Tokenizers of encoders put signs around a text: a prompt is none that has ended."""
    tokenizers = pytest.importorskip("tokenizers")
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = sorted({piece for text, _ in sentences() for piece in pieces(text)})
    ids = {word: place for place, word in enumerate([*signs, *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = tokenizers.normalizers.Lowercase(), tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(signs)
    around = [(sign, ids[sign]) for sign in signs[2:]]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    made.save(str(tmp_path / "tokenizer.json"))
    data = replace(run[1].data, words=str(tmp_path / "tokenizer.json"))
    start.train(replace(run[1], data=data), tmp_path / "run")
    found = generate(tmp_path / "run", "the harbour is", Writing(tokens=99))
    assert found.text.startswith("the harbour is a "), "what comes in the grammar"
    assert found.ids[0] == ids["[CLS]"] and found.ids.index(ids["[SEP]"]) == len(found.ids) - 1
    assert found.ended and not found.full and found.new == len(found.ids) - 4 == len(found.seconds)
    with pytest.raises(ValueError, match="the prompt has no word"):
        generate(tmp_path / "run", " ")


def test_words_that_were_changed_since_are_refused(run, tmp_path):
    """The ids of a run would stand for other words, and what is written would look like text."""
    (tmp_path / "words.txt").write_text("[PAD]\n[UNK]\nthe\nharbour\nis\na\n")
    data = replace(run[1].data, words=str(tmp_path / "words.txt"))
    start.train(replace(run[1], data=data, epochs=0), tmp_path / "run")
    generate(tmp_path / "run", "the harbour", Writing(1))
    (tmp_path / "words.txt").write_text("[PAD]\n[UNK]\nthe\nis\nharbour\na\n")
    with pytest.raises(ValueError, match=r"is not what the run in .* other words: name those with words="):
        generate(tmp_path / "run", "the harbour", Writing(1))


def test_ids_of_which_nobody_knows_the_words_are_no_text_to_write(run, tmp_path):
    np.savez(tmp_path / "ids.npz", x=[[2, 3, 4, 5]] * 9, y=[[3, 4, 5, 6]] * 9)
    data = Npz(str(tmp_path / "ids.npz"), vocabulary=WORDS)
    start.train(replace(run[1], data=data, epochs=0, val_share=0.0), tmp_path / "run")
    with pytest.raises(ValueError, match="the words of its token ids are not known: train it on Texts"):
        generate(tmp_path / "run", "the harbour")


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e300])
def test_any_temperature_draws(client, temperature):
    first = list(continued(client, [3, 7], LENGTH, Writing(1, temperature), 0))
    assert temperature > 1 or first == list(continued(client, [3, 7], LENGTH, Writing(1), 0))


def test_texts_without_labels_are_no_language_models_to_predict(run, tmp_path):
    (tmp_path / "new.jsonl").write_text('{"text": "the harbour is"}\n')
    with pytest.raises(ValueError, match=r"the next tokens are the labels .* say next_token=True of texts"):
        predictions(run[0], Inputs(data=Texts(str(tmp_path / "new.jsonl"), length=LENGTH, vocabulary=WORDS)))
    with pytest.raises(ValueError, match="there is no field 'said', only text: name the fields"):
        predictions(run[0], Inputs(data=Texts(str(tmp_path / "new.jsonl"), text="said", next_token=True)))


def test_guards_that_need_company_are_refused_and_no_option_is_named_that_there_is_not(run, tmp_path):
    start.train(replace(run[1], epochs=0, guard=KAnonymous(k=2)), tmp_path / "run")
    with pytest.raises(ValueError, match=r"needs 2 samples at a time, and one text is one: .* `cutlayer predict`$"):
        generate(tmp_path / "run", "the harbour")

"""Every command of docs/deployment.md, and those of the kit outside their containers, run as they are written."""

import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress

import numpy as np
import pytest
import yaml
from pages import ROOT, blocks, commands_of
from typed_commands import PATIENCE, Shell

PAGE = ROOT / "docs/deployment.md"


def data(path, seed):
    """Forty pictures of ten kinds, told apart by a bright row."""
    draw = np.random.default_rng(seed)
    y = np.arange(40) % 10
    x = draw.random((40, 28, 28), dtype=np.float32) * 0.3
    x[np.arange(40), 2 * y] += 0.6
    np.savez(path, x=x, y=y)


def furnished(folder):
    """With the plan, and the data of two hospitals."""
    (folder / "plan.py").write_text((ROOT / "deploy/plan.py").read_text())
    for number, name in enumerate(("a", "b")):
        data(folder / f"{name}.npz", number)
    return folder


def until(what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A folder with what the page says is there."""
    folder = furnished(tmp_path_factory.mktemp("page"))
    found = Shell(folder)
    yield found
    found.close()


@pytest.fixture(scope="module")
def typed(shell):
    """All commands of the page, in its order; a command that goes on while others follow is waited for at the end."""
    done, serving, joined = [], [], []
    for words in commands_of(PAGE, "console"):
        name = words[1]
        if name == "serve":
            for one in serving:  # the page has begun anew: nobody stays from before
                one.wait()
            shell.elsewhere()
            serving, joined = [shell.start(words)], []
            done.append(serving[0])
            until(lambda server=serving[0]: "listening on" in server.said)
        elif name == "join":
            joined.append(shell.start(words))
            done.append(joined[-1])
        else:
            if name == "predict":
                for one in joined:
                    one.wait()
            done.append(shell.run(words))
    for one in serving:
        one.signal()
        one.wait()
    return done


def test_every_command_ends_well(typed):
    assert [one.words[1] for one in typed] == [words[1] for words in commands_of(PAGE, "console")], (
        "all of them were typed"
    )
    assert {"serve", "join", "certs", "status", "predict"} == {one.words[1] for one in typed}
    for one in typed:
        assert one.code == 0, (one.words, one.code, one.said)
        assert "Traceback" not in one.said


def test_what_they_leave_is_where_the_page_says(typed, shell):
    assert (shell.folder / "found.csv").read_text().startswith("sample,predicted")
    for folder in ("runs/hospital-a", "runs/hospital-b"):
        result = json.loads((shell.folder / folder / "result.json").read_text())
        assert result["exact"] and result["steps"] == 5
    assert all((shell.folder / "certs" / name).is_dir() for name in ("server", "hospital-a", "hospital-b", "ops"))
    assert "hospital-b" in (shell.folder / "certs/server/revoked.txt").read_text()


def test_the_plan_of_the_page_is_the_one_of_the_kit():
    (text,) = [text for _, text in blocks(PAGE, "python") if "def plan" in text]
    tell = re.compile(r"def plan.*?\n\n|def plan.*\Z", re.DOTALL)
    assert tell.search(text)[0].strip() == tell.search((ROOT / "deploy/plan.py").read_text())[0].strip()


# ------------------------------------------------------------------------- the kit, outside its containers
@pytest.fixture(scope="module")
def kit(shell, tmp_path_factory):
    """What compose.yaml runs: a client that is stopped before there is a server, then all three to the end."""
    folder, text = furnished(tmp_path_factory.mktemp("kit")), (ROOT / "deploy/compose.yaml").read_text()
    (make,) = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#   cutlayer certs")]
    made = shell.run(make.split(), folder=folder)
    assert made.code == 0, made.said
    words = {name: ["cutlayer", *one["command"]] for name, one in yaml.safe_load(text)["services"].items()}
    shell.elsewhere()
    done = {"early": shell.start(words["hospital-a"], folder)}
    until(lambda: '"waiting"' in done["early"].said)
    done["early"].signal()
    done["early"].wait()
    done["server"] = shell.start(words["server"], folder)
    port = shell.port("9100")
    until(lambda: "listening on" in done["server"].said and ask(port, "/healthz")[0] == 200)
    answers = {"waiting": ask(port, "/readyz")}
    shell.elsewhere()
    shell._ports["7443"] = int(re.search(r":(\d+), plan", done["server"].said)[1])
    call_without_certificate(shell.port("7443"))
    for name in ("hospital-a", "hospital-b"):
        shell._ports.pop("9100", None)  # in a container every party has a port 9100 of its own
        done[name] = shell.start(words[name], folder)
    for name in ("hospital-a", "hospital-b"):
        done[name].wait()
    answers["finished"] = ask(port, "/readyz")
    done["server"].signal()
    done["server"].wait()
    return folder, done, answers


def call_without_certificate(port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as line:
        context.wrap_socket(line).recv(1)


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


@pytest.mark.campaign
def test_the_commands_of_the_kit_run_to_the_end(kit):
    folder, done, answers = kit
    assert {name: one.code for name, one in done.items()} == {
        "early": 130, "server": 0, "hospital-a": 0, "hospital-b": 0
    }, [one.said for one in done.values()]  # fmt: skip
    assert answers["waiting"][0] == 503 and "never came" in answers["waiting"][1]["why"]
    assert answers["finished"] == (200, {"ready": True, "state": "finished", "why": ""})
    for result in folder.glob("runs/*/result.json"):
        assert json.loads(result.read_text())["exact"]
    assert len(list(folder.glob("runs/*/result.json"))) == 3


@pytest.mark.campaign
def test_what_grpc_says_of_a_caller_without_a_certificate_is_in_the_audit_log(kit):
    folder, done, _ = kit
    (path,) = folder.glob("runs/serve-*/audit.jsonl")
    said = [json.loads(line) for line in path.read_text().splitlines()]
    (line,) = [one for one in said if one["event"] == "grpc"]
    assert "Handshake failed" in line["text"] and line["party"] == "cutlayer.grpc"
    assert "ssl_transport_security.cc:" not in re.sub(r"^\{.*\}$", "", done["server"].said, flags=re.MULTILINE)


@pytest.mark.campaign
def test_a_stop_is_one_sentence_and_no_trace(kit):
    _, done, _ = kit
    assert done["early"].said.count("error: stopped before it took part; the same command goes on") == 1
    assert not any("Traceback" in one.said for one in done.values())

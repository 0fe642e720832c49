"""Every command of docs/first-hour.md, in its order, as it is written; only smaller, and on a free port."""

import contextlib
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import time

from pages import ROOT, blocks, files_of

PAGE = ROOT / "docs/first-hour.md"
TOY = ["--attack", "Decoder(steps=2, width=4, hidden=8)", "--images", 16, "--no-alone"]


def lines():
    """What is typed on the page, `make` and `source` left out: the environment is there."""
    typed = [line.removeprefix("$ ") for _, text in blocks(PAGE, "console") for line in text.splitlines()]
    return [line for line in typed if not line.startswith(("make ", "source "))]


def smaller(text):
    return re.sub(r"(epochs[= ])30", r"\g<1>2", text.replace("range(900)", "range(120)"))


@contextlib.contextmanager
def serving(words, folder):
    """The terminal in which the server stays."""
    said = (folder / "serve.txt").open("w+")
    server = subprocess.Popen([sys.executable, "-m", "cutlayer.cli", *words], stdout=said, stderr=said)
    try:
        end = time.monotonic() + 60
        while "listening on" not in (folder / "serve.txt").read_text():
            assert server.poll() is None and time.monotonic() < end, (folder / "serve.txt").read_text()
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_the_hour_goes_as_it_is_told(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in files_of(PAGE).items():
        (tmp_path / name).write_text(smaller(text))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {}
    with contextlib.ExitStack() as terminals:
        for line in lines():
            program, *words = shlex.split(smaller(line).replace(":7443", f":{port}"))
            if program == "python":
                runpy.run_path(words[0])
            elif words[0] == "serve":
                terminals.enter_context(serving(words, tmp_path))
            else:
                code, out, err = command(*words, *(TOY if words[0] == "audit" else []))
                assert code == 0, (line, out, err)
                told[words[0]] = out + err
    assert set(told) == {"layers", "train", "audit", "check", "certs", "join", "status", "predict"}
    assert "all laws hold" in told["check"] and "factory              done" in told["status"]
    assert "30 samples, no labels to compare with" in told["predict"]
    assert re.search(r"training samples were the attacker's own", told["audit"])
    assert (tmp_path / "monday.csv").read_text().count("\n") == 31


def test_every_file_on_the_page_has_a_name():
    assert list(files_of(PAGE)) == ["sounds.py", "pump.py", "smear.py", "plan.py", "monday.py"]

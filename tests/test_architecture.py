"""ARCHITECTURE.md is true: its hops are those of a recorded step, its rule is the tests' rule, its files exist."""

import ast
import re
import traceback
from pathlib import Path

from test_layers import LAYERS, NEVER, PLUG_INS, ROOT

from cutlayer.core.server import Server

WRAPPERS = ("cli/__init__.py", "cli/options.py", "cli/resumable.py")  # what is typed, before the command sees it
PAGE = (Path(__file__).parents[1] / "docs" / "ARCHITECTURE.md").read_text()


def block(after: str) -> str:
    return re.search(re.escape(after) + r".*?```\w*\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_hops_of_a_step_are_those_of_a_recorded_one(command, monkeypatch, tmp_path):
    stacks, answer = [], Server.handle

    def recorded(self, message):
        stacks.append(traceback.extract_stack())
        return answer(self, message)

    monkeypatch.setattr(Server, "handle", recorded)
    code, _, err = command(
        "train", "--data", "Digits(limit=64)", "--epochs", 1, "--threads", 1, "--out", tmp_path / "a"
    )
    assert code == 0, err
    files = [Path(frame.filename) for frame in stacks[0]]
    inside = [str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)]
    first = list(dict.fromkeys(file for file in inside if file not in WRAPPERS))
    assert first + ["core/server.py"] * ("core/server.py" not in first) == block("<!-- hops").split()


def test_the_rule_is_the_one_that_is_tested():
    told = ast.parse(block("## The rule"))
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in told.body}
    assert values == {"LAYERS": LAYERS, "NEVER": NEVER, "PLUG_INS": PLUG_INS}


def test_every_room_is_described_and_every_file_named_is_there():
    rooms = re.findall(r"^  (\w+)/", block("## The rooms"), re.MULTILINE)
    assert sorted(rooms) == sorted(" ".join(LAYERS).split())
    named = set(
        re.findall(
            r"`((?:core|wire|nets|data|rules|guards|attacks|detectors|training|engines|audit)/[\w/]+\.py)`", PAGE
        )
    )
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    grpc = set(re.findall(r"`(grpc/\w+\.py)`", PAGE))
    assert [name for name in sorted(grpc) if not (ROOT / "engines" / name).exists()] == []

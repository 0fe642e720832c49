"""The quick audit's page: every figure on it is one of its JSON's, and single images stay out of both."""

import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "quick_page.py"))


def row(guard, attack, value, form="", **more):
    return {"guard": guard, "attack": attack, "form": form, "value": value, "accuracy": 0.9, "secret": "images",
            "valid": True, **more}  # fmt: skip


def audit():
    rows = [
        row("none", "FORA()", 0.8, interval={"value": [0.75, 0.85]}, sampled={"scores": [0.123456789] * 400}),
        row("none", "Membership()", 0.51, secret="membership", valid=False, why_control_failed="AUC 0.51"),
        row("SEAL()", "FORA(knows='oblivious')", 0.6, "oblivious"),
        row("SEAL()", "FORA(knows='matched')", 0.3, "matched"),
        row("SEAL()", "FORA(knows='matched+lift')", 0.4, "matched+lift"),
        row("SEAL()", "Decoder()", 0.7),
        row("SEAL()", "TailEnumeration()", 1.0, secret="labels"),
    ]  # fmt: skip
    alone = {"name": "client alone", "accuracy": 0.85}
    verdicts = [{"guard": "none", "grade": "open"}, {"guard": "SEAL()", "grade": "does not protect"}]
    return {"version": "1", "command": "cutlayer audit", "floors": {"class_mean": {"ssim": 0.3}}, "rows": rows,
            "verdicts": verdicts, "alone": [alone], "split_buys_words": "The split buys 5 points."}  # fmt: skip


def test_each_guard_has_its_strongest_attacker_and_what_knowing_the_guard_changes():
    page = TOOL["page"](audit())
    assert "| `none` | 0.900 | 0.800 (0.750 to 0.850) | `FORA()` | open | 0.80 |" in page
    assert "| `SEAL()` | 0.900 | 0.700 | `Decoder()` | does not protect | 0.60 / 0.40 |" in page
    assert "`FORA` against `SEAL()` (0.60 without it, 0.40 with it)" in page
    assert "1.00 behind `SEAL()`" in page


def test_what_failed_and_what_a_client_alone_reaches_is_said():
    page = TOOL["page"](audit())
    assert "`Membership()` failed, so its rows count for nothing: AUC 0.51" in page
    assert "| client alone | 0.850 | nothing leaves |" in page and "The split buys 5 points." in page


def test_single_images_do_not_come_along():
    kept = TOOL["shortened"](audit(), 18.84)
    assert kept["cpu_minutes"] == 18.8 and len(kept["rows"]) == 7
    assert "sampled" not in kept["rows"][0] and kept["rows"][0]["interval"] == {"value": [0.75, 0.85]}

"""The report in a browser: nothing wider than the screen, nothing too faint, sorted and slid by hand."""

import pytest
from browser import Browser
from toys import samples, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.report import files as report
from cutlayer.audit.spec import AuditSpec
from cutlayer.data.base import Loaded
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import WCC, Chain, Gaussian, LightSplit

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=1, batch_size=8, clients=3, partition=Dirichlet(alpha=0.5))
    guards = [LightSplit(ratio=4), Gaussian(scale=1.0), Chain(LightSplit(ratio=4), WCC(weight=0.01))]
    found = audit(AuditSpec(plan, guards, [Decoder(steps=20, width=8, hidden=16)], images=24), loaded)
    folder = tmp_path_factory.mktemp("report") / "a"
    report.write(found, folder, "cutlayer audit " + " ".join(f"--guard '{guard!r}'" for guard in guards))
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_everything_fits_and_can_be_read(browser, page_file, width, dark):
    page = browser.open(page_file, width, dark)
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.problems() == []


def test_the_measure_sees_what_it_should(browser, page_file):
    """A check that cannot fail is none: text too faint, and a box too wide, are found."""
    page = browser.open(page_file, 420)
    page.run("document.querySelector('h1').style.color = '#ccc'")
    page.run("document.querySelector('p.sub').style.width = '600px'")
    found = " ".join(page.problems())
    assert "h1 has a contrast of 1.5" in found and "the page is" in found and "p.sub ends at" in found


def test_dark_is_dark(browser, page_file):
    shade = "getComputedStyle(document.body).backgroundColor"
    light, dark = (browser.open(page_file, 1400, dark).run(shade) for dark in (False, True))
    assert light == "rgb(246, 248, 250)" and dark == "rgb(18, 23, 29)"


def test_tables_say_that_they_scroll_where_they_do(browser, page_file):
    said, wider = "one.classList.contains('wide')", "one.scrollWidth > one.clientWidth + 1"
    told = f"[...document.querySelectorAll('.scroll')].map(one => [{said}, {wider}])"
    narrow = browser.open(page_file, 420).run(told)
    assert any(wide for wide, _ in narrow) and all(said == wide for said, wide in narrow)


def test_the_guard_stays_in_sight_while_its_figures_are_scrolled_even_without_a_script(browser, page_file):
    page = browser.open(page_file, 420)
    moved = "one.classList.remove('wide'); const cell = one.querySelector('tr:last-child > :first-child')"
    places = "const before = cell.getBoundingClientRect().left; one.scrollLeft = 90"
    told = f"(one => {{ {moved}; {places}; return [one.scrollLeft, cell.getBoundingClientRect().left - before] }})"
    scrolled = [move for by, move in page.run(f"[...document.querySelectorAll('.scroll')].map{told}") if by == 90]
    assert scrolled and set(scrolled) == {0}


@pytest.mark.parametrize("width", [1400, 420])
def test_a_reader_meets_the_leak_on_the_first_screen(browser, page_file, width):
    """What is read, and the verdict on the first guards, without scrolling; costs and gains come behind it."""
    page = browser.open(page_file, width)
    bottom = "(what => document.querySelector(what).getBoundingClientRect().bottom)"
    assert page.run(f"{bottom}('.leads')") < 700 and page.run(f"{bottom}('.verdict')") < 900
    told = page.run("[...document.querySelectorAll('h2')].slice(0, 3).map(one => one.innerText)")
    assert told == ["Verdict", "What it costs", "What the split buys"]


@pytest.mark.parametrize("width", [1400, 420])
def test_the_command_that_made_it_is_whole_on_the_screen(browser, page_file, width):
    cut_off = "[...document.querySelectorAll('pre')].map(one => one.scrollWidth > one.clientWidth + 1)"
    assert browser.open(page_file, width).run(cut_off) == [False]


def test_a_click_sorts_and_a_second_one_turns(browser, page_file):
    page = browser.open(page_file, 1400)
    column = "[...document.querySelectorAll('table')[0].rows].slice(1).map(row => parseFloat(row.cells[3].innerText))"
    page.run("document.querySelectorAll('table')[0].rows[0].cells[3].querySelector('button').click()")
    down = page.run(column)
    page.run("document.querySelectorAll('table')[0].rows[0].cells[3].querySelector('button').click()")
    assert down == sorted(down, reverse=True) and page.run(column) == sorted(down) and len(set(down)) > 1


def test_the_slider_uncovers_the_original(browser, page_file):
    page = browser.open(page_file, 1400)
    clip = "getComputedStyle(document.querySelector('.strip img + img')).clipPath"
    knob = "const knob = document.querySelector('.slide input')"
    moved = f"(at => {{ {knob}; knob.value = at; knob.dispatchEvent(new Event('input')) }})"
    page.run(f"{moved}(0)")
    covered = page.run(clip)
    page.run(f"{moved}(100)")
    assert "0%" in covered and "100%" in page.run(clip)


def test_paper_is_white_and_holds_every_table(browser, page_file):
    page = browser.open(page_file, 760, dark=True)
    page.ask("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut_off = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
    assert page.run(cut_off) == 0

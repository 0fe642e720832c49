# Two commands matter: `make demo` and `make test`. Both set the environment up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # where it is set, every process of a test compiles the package again: two seconds

.PHONY: setup demo test lint types unit docs-test docs-slice browser locked flower campaign mutants bench docs evidence clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cutlayer needs Python 3.11 or newer; try: make PYTHON=python3.12 " + "setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/cutlayer demo

# mypy has one core to itself and leaves the others idle; beside the tests it costs half the time.
test: setup lint
	@$(MAKE) --no-print-directory -j2 types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# A process a core and one more, since tests of connections wait more than they compute; each with whole files: what a
# file prepares is prepared once. The longest ones come first.
unit: setup
	$(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --dist loadfile --no-loadscope-reorder

# What people look at: the report in a browser, the docs, notebooks, the wheel. Needs the extra `docs` and Chromium;
# without a browser its tests are left out, and the last lines say which.
docs-test: $(VENV)/.docs
	$(BIN)/python -m pytest -rs -m docs tests/site

# The part of it that CI has time for: without the wheel's demo and the two notebooks that audit.
docs-slice: $(VENV)/.docs
	$(BIN)/python -m pytest -rs -m "docs and not long" -n 2 --dist loadfile tests/site

# Chromium, where this machine lets one be installed; where it does not, that is said, and no error.
browser:
	@bash tools/browser.sh

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	@touch $@

# Flower pins older releases of what others need, so its adapters are tested in an environment of their own: rules as
# strategies, guards as mods of its clients, and these in its simulation, which brings Ray, where that can be had.
flower:
	$(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/python -m pip install -q -c constraints.txt torch
	@$(VENV)-flower/bin/python -m pip install -q -e '.[flower]' pytest || { echo "Flower 1.21 or newer cannot be installed \
	here, for the reason above: nothing of its adapters was tested."; exit 1; }
	@$(VENV)-flower/bin/python -m pip install -q 'flwr[simulation]' || echo "Flower's simulation needs a Ray of a release \
	that is not to be had for this Python or machine: the test in it is left out, all others run. Try: make flower PYTHON=python3.12"
	$(VENV)-flower/bin/python -m pytest -rs -m '' tests/rules/test_flower.py tests/guards/test_flower_mod.py

# The environment that was tested last, version by version.
locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps -e .
	@touch $(VENV)/.ready

# Full counts of what the tests show a slice of; the figures go to docs/evidence. Hours; a campaign that was killed goes
# on where it was (.campaign/), until the package changes.
campaign: setup
	$(BIN)/python -m pytest -m campaign --go-on

# Small bugs, planted one by one in a copy: do the tests notice? Hours; what it finds goes to docs/evidence.
mutants: setup
	$(BIN)/python tools/mutants.py --jobs 2

bench: setup
	$(BIN)/cutlayer bench

# The site, in build/site. Tables of plug-ins follow from their docstrings and the evidence; a test says when not.
docs: $(VENV)/.docs
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/catalogue.py
	$(BIN)/mkdocs build --strict --quiet

# EVIDENCE.md and its figure follow from the JSON in docs/evidence; a test says when they do not.
evidence: setup
	$(BIN)/python tools/evidence.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info

# make demo: install and learn the digits; make test: lint, types, all tests; make quick: tests without the slow ones;
# make bench: speed and memory; make docs: the site; make torture: the long tests of reliability; make fuzz: changed files
# for every reader; make mutants: whether tests notice; make coverage: which lines they run; make lock: every package's
# version and hash; make audit: known holes in them; make release-check: both distributions, installed.
VENV := .venv
PYTHON := python3
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
SOURCES := pyproject.toml constraints-cpu.txt
# modules are compiled once, whatever the environment says: the tests start many processes
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick slowest bench docs torture fuzz mutants coverage lock install-locked audit release-check lint clean

demo: $(VENV)/.installed
	@$(VENV)/bin/gatf run
	@echo "next: source $(VENV)/bin/activate, then gatf --help"

test: $(VENV)/.installed-dev lint
	$(VENV)/bin/pytest -n 2 --dist worksteal

quick: $(VENV)/.installed-dev
	$(VENV)/bin/pytest -n 2 --dist worksteal -m "not slow"

# print the slowest tests, in CPU seconds
slowest: $(VENV)/.installed-dev
	rm -f .costs.jsonl
	$(VENV)/bin/pytest -n 2 --dist worksteal --costs .costs.jsonl
	$(VENV)/bin/python tools/slowest.py .costs.jsonl

bench: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/run.py
	$(VENV)/bin/python tools/update_docs.py --figures

# kills, crash points, fuzzing, long runs, load and attacks: hours; shorter as e.g. make torture TORTURE="kills=10 load",
# and with TORTURE=--missing it goes on where it was ended
torture: $(VENV)/.installed-dev
	$(VENV)/bin/python tools/torture.py $(TORTURE)

fuzz: $(VENV)/.installed-dev
	$(VENV)/bin/pytest -s tests/fuzz --fuzz 10000

# fails if a mutant survives or no longer applies; the outcome is published either way
mutants: $(VENV)/.installed-dev
	nice -n 19 $(VENV)/bin/python tools/mutants.py; code=$$?; $(VENV)/bin/python tools/update_docs.py contributing.md; exit $$code

coverage: $(VENV)/.installed-dev
	$(PIP) pytest-cov
	$(VENV)/bin/python tools/lines.py
	$(VENV)/bin/python tools/update_docs.py

# for Python 3.11 on Linux; torch is not in it: its builds differ by index, and constraints-cpu.txt has its version
lock: $(VENV)/bin/python
	$(PIP) uv
	$(VENV)/bin/python tools/lock.py

# every package as the lock has it, or none
install-locked: $(VENV)/bin/python
	$(PIP) torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(VENV)/.installed $(VENV)/.installed-dev

audit: $(VENV)/bin/python
	$(PIP) pip-audit
	$(VENV)/bin/python tools/audit.py

# build, check and install both distributions; make release-check RELEASE=--no-install is quick
release-check: $(VENV)/.installed-dev
	$(PIP) build check-jsonschema uv
	$(VENV)/bin/python tools/release_check.py $(RELEASE)

docs: $(VENV)/.installed-dev
	$(VENV)/bin/zensical build --clean --strict

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	@echo "installing into $(VENV), a few minutes"
	@$(PIP) -e .
	@touch $@

# torch first: a package that merely asks for torch would fetch the registry's newest build
$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis

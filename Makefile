# make demo: install and learn the digits; make test: lint, types, tests; make bench: speed and memory; make docs: the site;
# make torture: every crash point.
VENV := .venv
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
SOURCES := pyproject.toml constraints-cpu.txt

.PHONY: demo test slowest bench docs torture lint clean

demo: $(VENV)/.installed
	$(VENV)/bin/gatf run
	@echo "to go on: source $(VENV)/bin/activate, then gatf --help"

test: $(VENV)/.installed-dev lint
	$(VENV)/bin/pytest -n 2 --dist worksteal

# which tests are slow, in processor seconds, into docs/contributing.md
slowest: $(VENV)/.installed-dev
	rm -f .costs.jsonl
	$(VENV)/bin/pytest -n 2 --dist worksteal --costs .costs.jsonl
	$(VENV)/bin/python tools/slowest.py .costs.jsonl

bench: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/run.py
	$(VENV)/bin/python tools/performance.py

# every file operation of every command as a crash point; takes about half an hour
torture: $(VENV)/.installed-dev
	$(VENV)/bin/pytest -s tests/test_crashes.py --crash-points 0

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	$(PIP) -e .
	touch $@

# torch first: a package that merely asks for torch would fetch the registry's newest build
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis

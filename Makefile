# The two commands of the README. Each creates the virtual environment on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: simulate test test-all test-oldest lint links check site saving paper-page verify-images pictures soak bench clean

simulate: $(VENV)/.installed
	$(BIN)/python -m simulation demo

# A worker for each core. `test` leaves out what is marked slow and makes a tenth of the examples of
# property tests; `test-all` goes on with these.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --dist worksteal

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow" --hypothesis-profile quick

test-all: test
	$(PYTEST) -m "slow or property"

# What faces Flower, on the oldest version that pyproject.toml allows; all else is shared.
OLDEST := $(VENV)-oldest
FLOWER := $(shell sed -n 's/^ *"flwr>=\([0-9.]*\),.*/\1/p' pyproject.toml)
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/$(subst $(VENV)/,,$(PYTEST)) -m "not slow" --hypothesis-profile quick \
		tests/unit/strategies/flower tests/unit/client tests/unit/server tests/integration/server/test_app.py \
		tests/integration/server/runtimes tests/integration/server/transport/test_grid.py tests/integration/test_earlier_runs.py
	$(OLDEST)/$(subst $(VENV)/,,$(PYTEST)) tests/e2e/test_superlink.py -k "over_tls or plain_flwr_run"

$(OLDEST)/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear $(OLDEST)
	$(BIN)/python $(PURELIB) > $$($(OLDEST)/bin/python $(PURELIB))/shared.pth
	$(OLDEST)/bin/python -m pip install --quiet 'flwr==$(FLOWER).*'
	touch $@

lint: links $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.links $(BIN)/mypy
	MYPYPATH=.links:tests/containers $(BIN)/mypy tests/containers/verify tests/containers/engine.py
	cd .links && $(CURDIR)/$(BIN)/lint-imports ../pyproject.toml
	$(BIN)/python docs/draw_architecture.py --check

# mypy and import-linter want a package's folders inside the folder of its name.
links:
	rm -rf .links
	mkdir -p .links/flower_scheduling
	for each in $(wildcard flower_scheduling/*.py) client server simulation strategies; do \
		ln -s ../../$$each .links/flower_scheduling/; \
	done
	ln -s ../../flower_scheduling/py.typed .links/flower_scheduling/

check: lint test-all

# The documentation as a folder of pages, site/index.html, which needs no server and no network.
site: links $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The picture of the README, measured anew; the paper's figures and the page that shows them. Without
# PAPER the whole of the paper is computed, in some 20 minutes on two cores.
saving: $(VENV)/.installed
	$(BIN)/python docs/saving/draw_saving.py --measure

PAPER ?= --quick
paper-page: $(VENV)/.installed
	$(BIN)/python -m simulation paper $(PAPER) --out runs/paper-page
	cp runs/paper-page/figures/*.svg runs/paper-page/results.json docs/paper/figures/
	$(BIN)/python -m simulation paper-page docs/paper/results.json docs/paper/claims.md --figures docs/paper/figures

# Builds the container images and runs a fleet from them, without Docker. Exit code 2: it cannot run
# here, which is a failure in CI alone.
verify-images: $(VENV)/.installed-dev
	$(BIN)/python tests/containers/verify || { [ $$? -eq 2 ] && [ "$$CI" != true ]; }

pictures: links $(VENV)/.installed-dev
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python -m pytest tests/e2e/test_page_browser.py
	cp artifacts/page-why.png artifacts/page-fleet.png artifacts/page-channels.png artifacts/page-runs.png docs/how-to/

soak: $(VENV)/.installed-dev
	SOAK_S=600 SOAK_SEED=$$(date +%s) $(BIN)/python -m pytest tests/faults -s

bench: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python benchmarks/bench_study.py
	$(BIN)/python benchmarks/bench_simulation.py
	$(BIN)/python benchmarks/bench_stream.py --huge
	$(BIN)/python benchmarks/bench_large.py
	$(BIN)/python benchmarks/bench_fleet.py
	$(BIN)/python benchmarks/bench_compression.py
	$(BIN)/python benchmarks/bench_superlink.py
	$(BIN)/python benchmarks/bench_page.py
	$(BIN)/python benchmarks/bench_memory.py
	$(BIN)/python benchmarks/bench_lies.py
	$(BIN)/python benchmarks/bench_modes.py
	$(BIN)/python benchmarks/bench_deadline.py
	$(BIN)/python benchmarks/bench_bound.py
	$(BIN)/python benchmarks/bench_held_out.py
	$(BIN)/python benchmarks/bench_first_times.py

clean:
	rm -rf $(VENV) $(OLDEST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[simulation,page]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-docs

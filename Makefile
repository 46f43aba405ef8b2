# Every target installs what it needs into .venv; the machine needs only Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: install test quick slow attack special-files demo lint fit bench figures notebooks docs lock sbom wheel lower-bounds clean

install: $(READY)

# The lock files hold the sha256 of every file. torch comes last and is held by its version, see tools/lock.py; nothing
# is built in an environment of its own, whose content no lock would cover.
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation
LOCKS  := requirements/build.txt requirements/run.txt

$(READY): pyproject.toml constraints.txt $(LOCKS)
	$(PYTHON) -c 'import sys; sys.exit("fheat needs Python 3.11 or newer: set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	@echo "installing fheat into $(VENV): once, some minutes; pip prints nothing unless something is wrong"
	$(PYTHON) -m venv $(VENV)
	@echo "1 of 3: what builds it"
	@$(PIP) --no-deps --require-hashes --requirement requirements/build.txt
	@echo "2 of 3: $$(grep -c '==' requirements/run.txt) locked packages; this takes longest"
	@$(PIP) --no-deps --require-hashes --requirement requirements/run.txt
	@echo "3 of 3: PyTorch, if it is not there, and fheat itself"
	@$(PIP) --constraint constraints.txt --editable ".[cluster,dev,dicom,export,h5,nrrd,studio]"
	@touch $(READY)
	@echo "installed; type '. $(BIN)/activate' to have the command fheat in this shell"

PYTEST := $(BIN)/pytest --dist worksteal

test: lint quick

quick: $(READY)
	$(PYTEST) -n 2 -m "not slow"

# Many of these wait for other processes, so that two cores have time for a third worker.
slow: $(READY)
	$(PYTEST) -n 3 -m slow

N ?= 20000
SEED ?= 0
RESULTS := benchmarks/results

# make attack N=200000 STORE=1: hostile files; STORE=1 keeps the counts for docs/evidence/trust.md.
attack: $(READY)
	$(BIN)/python -m tests.attack $(N) --seed $(SEED) $(if $(STORE),--store $(RESULTS)/attack-cpu.json)

special-files: $(READY)
	$(BIN)/python -m tests.attack.special_files $(if $(STORE),--store $(RESULTS)/special-files-cpu.json)

lint: $(READY)
	$(BIN)/python tools/check_pins.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/fheat demo

fit: $(READY)
	$(BIN)/python tools/fit_rational.py

bench: $(READY)
	$(BIN)/fheat bench

figures: $(READY)
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/concept_figures.py

notebooks: $(READY)
	$(BIN)/python tools/notebooks.py

PROSE := docs src tools examples README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md

# The site goes into site/; open site/index.html. The theme advertises another program on every build unless told not to.
docs: $(READY)
	$(BIN)/python tools/architecture.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/evidence.py
	$(BIN)/python tools/render.py
	$(BIN)/python tools/index.py
	$(BIN)/codespell $(PROSE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: $(READY)
	$(BIN)/python tools/lock.py
	$(BIN)/python tools/lock_image.py
	$(BIN)/python tools/lowest.py --lock

sbom: $(READY)
	$(BIN)/python tools/sbom.py

# The lowest versions that pyproject.toml allows, in build/lowest; skipped with a line where no registry can be reached.
lower-bounds: $(READY)
	$(BIN)/python tools/lowest.py

# dist/fheat-VERSION-py3-none-any.whl and dist/fheat-VERSION.tar.gz, by the locked hatchling; tests/release uses both.
wheel: $(READY)
	$(BIN)/python -m hatchling build -d dist
	ls -l dist

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

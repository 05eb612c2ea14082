# make demo: the main job on bundled data · make check: lint, types, floors · make test: check and the quick tests
# make test-slow: compilation, killed processes, long searches · make fresh: an install without constraints
# CI runs fresh, test, test-slow and demo.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check fresh format docs flower smoke lock locked sbom audit-dependencies clean

demo: $(READY)
	$(BIN)/seepage audit --out demo --overwrite --workers 2

test: check
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What `pip install .` gives: the newest of everything but torch, in an environment of its own.
FRESH := build/fresh
fresh:
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check .
	$(FRESH)/bin/python scripts/check_install.py
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check pytest hypothesis
	$(FRESH)/bin/python -m pytest -q -m 'not slow' tests/cli/test_cli_bad_specs.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a site, in build/site.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

# A federation of Flower's, audited: report in flower-audit/audit.
flower: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[flower]'
	$(BIN)/python examples/flower_audit.py --out flower-audit

# Every table and figure of the papers at its smallest, two at a time: minutes on two cores.
smoke: $(READY)
	cd papers && ../$(BIN)/python -m benchmarks.smoke

# The test environment from requirements.lock: these files, by their hashes, and no others.
locked:
	$(PYTHON) -m venv .venv-locked
	.venv-locked/bin/python -m pip install --disable-pip-version-check --require-hashes --only-binary :all: \
		-r requirements.lock
	.venv-locked/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation \
		-e . -e papers

# requirements.lock after a change: versions stay where they fit, and with UPGRADE=--upgrade the newest are taken.
TOOLS := build/tools
lock:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(TOOLS)/bin/uv pip compile requirements.in -c constraints.txt --output-file requirements.lock $(UPGRADE) \
		--universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
		--no-emit-package seepage --no-emit-package seepage-papers --custom-compile-command 'make lock'

# What is installed, as a CycloneDX bill of materials.
sbom: $(READY)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file sbom.json $(BIN)/python

# Known vulnerabilities of what is locked; needs an index and a network that allow it.
audit-dependencies: $(READY)
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --disable-pip --require-hashes -r requirements.lock

# torch first and by its exact version, so that no range of a dependency picks another build.
$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev]' -e papers
	touch $(READY)

clean:
	rm -rf $(VENV) build dist demo

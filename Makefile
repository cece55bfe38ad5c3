# Set up, show, test and measure pgtare. No target needs root; see CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= demo
DURATION ?= 60
DEFAULT_TESTS := -m "not slow and not source"
# The tests start pgtare hundreds of times, also where Python is not to keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-dev demo live test test-slow test-versions test-source lint docs lock packages clean

setup: $(VENV)/.setup

setup-dev: $(VENV)/.setup-dev

$(VENV)/.setup: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pgtare needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv is missing (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "installing Python packages into $(VENV)"
	@# compiled when it is first imported: that spares a fifth of the disk and ten seconds
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "next: make demo (some two minutes), or $(BIN)/pgtare --help"

$(VENV)/.setup-dev: $(VENV)/.setup requirements-dev.lock
	@echo "installing Python packages for tests into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@# Python compiles what the tests import; later, six processes would each do so at once
	@$(BIN)/pytest --collect-only --quiet >/dev/null
	@touch $@

$(VENV)/.setup-agent: $(VENV)/.setup requirements-agent.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-agent.lock
	@touch $@

demo: setup
	@rm -rf $(OUT)
	@$(BIN)/pgtare weigh pg_stat_statements track_io_timing auto_explain compute_query_id \
	  log_min_duration_statement track_functions --duration $(DURATION) --out $(OUT)

# a private server with a changing load, and a page on it; Ctrl-C ends both
live: $(VENV)/.setup-agent
	@$(BIN)/pgtare live

test: setup-dev
	@$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder $(DEFAULT_TESTS)

test-slow: setup-dev
	@$(BIN)/pytest -m "slow and not source"

# every version of PostgreSQL that pgtare works with; VERSIONS="16 17" for some. Half an hour each.
test-versions: setup-dev
	@$(BIN)/python -m tests.versions $(VERSIONS)

# builds PostgreSQL from Debian's source packages: minutes, once, kept in PGTARE_DIR
test-source: setup-dev
	@$(BIN)/pytest -m source

lint: setup-dev
	@$(BIN)/ruff check src tests bench packaging
	@$(BIN)/ruff format --check src tests bench packaging
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.lint_c

# uv (from PyPI) resolves; pip installs
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra build --extra embedded pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra build --extra embedded --extra agent pyproject.toml -o requirements-agent.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra build --extra embedded --extra agent --extra dev pyproject.toml -o requirements-dev.lock

# all packages that can be built here, in dist/; those of Debian and RPM need their tools, and
# PG_MAJORS their server headers
PG_MAJORS ?= 15
packages: setup-dev
	@$(BIN)/python packaging/pypi/wheel.py dist
	@$(BIN)/python packaging/pypi/sbom.py dist
	@packaging/pgxn/archive.sh dist
	@if command -v pg_buildext >/dev/null && command -v dh >/dev/null; then packaging/debian/build.sh dist $(PG_MAJORS); \
	  else echo "left out: Debian's packages (apt-get install debhelper postgresql-server-dev-all)"; fi
	@if command -v rpmbuild >/dev/null; then packaging/rpm/build.sh dist $(PG_MAJORS); \
	  else echo "left out: RPMs (rpmbuild is not installed)"; fi

# Pages for a browser, and a man page for each command. A warning is an error; so is a link within
# the pages that leads nowhere.
SPHINX = $(BIN)/sphinx-build -q -W --keep-going -n -d docs/_build/doctrees
docs: setup-dev
	@$(SPHINX) -b html docs docs/_build/html
	@$(SPHINX) -b man docs docs/_build/man
	@echo "open docs/_build/html/index.html, or: man docs/_build/man/pgtare.1"

clean:
	rm -rf $(VENV) demo dist build docs/_build docs/commands

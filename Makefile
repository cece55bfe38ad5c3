# Set up, show, test and measure pgtare. No target needs root; see CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= demo
DURATION ?= 60
DEFAULT_TESTS := -m "not slow and not source"
# The tests start pgtare hundreds of times, also where Python is not to keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-dev demo live live-tour bench-live test test-versions test-aarch64 test-regression servers test-slow test-source source-build lint bench \
  bench-resolution bench-switching bench-wait bench-weights bench-truth bench-explain \
  bench-duet bench-protocols bench-clock bench-puzzle bench-observer bench-ring bench-storm \
  bench-layouts bench-scenarios bench-rows bench-evictions bench-incidents bench-recorder \
  bench-recorder-day bench-flame bench-trace bench-trace-cost bench-own-cost bench-spool \
  bench-agent-hour bench-agent-cost bench-agent-fleet bench-wait-sampling bench-metrics \
  bench-store bench-fleet bench-fleet-report bench-fleet-coverage bench-fleet-guards fuzz-trace lock docs \
  docs-links clean \
  wheel packages

setup: $(VENV)/.setup

setup-dev: $(VENV)/.setup-dev

$(VENV)/.setup: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pgtare needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv is missing (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "installing Python packages into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "next: make demo (some two minutes), or $(BIN)/pgtare --help"

$(VENV)/.setup-dev: $(VENV)/.setup requirements-dev.lock
	@echo "installing Python packages for tests into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

demo: setup
	@rm -rf $(OUT)
	@$(BIN)/pgtare weigh pg_stat_statements track_io_timing auto_explain compute_query_id \
	  log_min_duration_statement track_functions --duration $(DURATION) --out $(OUT)

# a private server with a changing load, and a page on it; Ctrl-C ends both
live: setup
	@$(BIN)/pgtare live

# a page on made-up rows of two days, for the tour of docs/live.md; Ctrl-C ends it
live-tour: setup
	@$(BIN)/python -m bench.live_tour

# Of thousands of tests of real servers one may miss its bound on a busy machine: what failed is
# run once more on its own, and fails if it fails again.
test: setup-dev
	@$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder $(DEFAULT_TESTS) || \
	  { [ $$? = 1 ] && echo "once more, one by one: the tests that failed" && \
	    $(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 10 $(DEFAULT_TESTS); }

test-slow: setup-dev
	@$(BIN)/pytest -m "slow and not source"

# every version of PostgreSQL that pgtare works with; VERSIONS="16 17" for some. Half an hour each.
test-versions: setup-dev
	@$(BIN)/python -m tests.versions $(VERSIONS)

# some minutes, on Debian 12, with postgresql-15, qemu-user-static and gcc-aarch64-linux-gnu
test-aarch64: setup-dev
	@$(BIN)/python -m tests.versions.aarch64

# a quarter of an hour for each version: PostgreSQL's own suites with all modules loaded and on
test-regression: setup-dev
	@$(BIN)/python -m tests.versions.regression $(VERSIONS)

# fetches a server of each version, once, without root: half a minute and 100 MB each
servers: setup-dev
	@$(BIN)/python -m tests.versions.servers $(VERSIONS)

# builds PostgreSQL from Debian's source packages: minutes, once, kept in PGTARE_DIR
test-source: setup-dev
	@$(BIN)/pytest -m source

source-build: setup
	@$(BIN)/python -m pgtare.server.source 18 --configure=--with-liburing --ldflags=-Wl,-z,lazy
	@$(BIN)/python -m pgtare.server.source 18 --configure=--with-liburing --cflags="-O2 -fno-plt"

lint: setup-dev
	@$(BIN)/ruff check src tests bench
	@$(BIN)/ruff format --check src tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.lint_c

bench: bench-resolution bench-switching bench-wait bench-explain bench-duet bench-clock

bench-resolution: setup
	@$(BIN)/python -m bench.resolution

bench-switching: setup
	@$(BIN)/python -m bench.switching

bench-wait: setup
	@$(BIN)/python -m bench.waits

bench-weights: setup
	@$(BIN)/python -m bench.weights

# as root, with bpftrace (Debian: apt-get install bpftrace)
bench-truth: setup
	@$(BIN)/python -m bench.ground_truth

bench-explain: setup
	@$(BIN)/python -m bench.explain

bench-duet: setup
	@$(BIN)/python -m bench.duet

# ten minutes; the machine should be idle
bench-protocols: setup
	@$(BIN)/python -m bench.protocols

bench-clock: setup
	@$(BIN)/python -m bench.clock

# minutes; with ROWS_SERVER=/path/to/pg_config on another server
bench-rows: setup
	@$(BIN)/python -m bench.row_sources $(if $(ROWS_SERVER),--server $(ROWS_SERVER))

# eight minutes; the machine should be idle
bench-evictions: setup
	@$(BIN)/python -m bench.evictions

# half an hour: incidents while the flight recorder is on, and what is known of them afterwards;
# INCIDENTS="--versions 18 --runs 2" for a part, INCIDENTS=--evictions for those of
# docs/pgss-evictions.md
bench-incidents: setup
	@$(BIN)/python -m bench.incidents $(INCIDENTS)

# three minutes: 500 sessions with the flight recorder on, and what keeping a trace takes
bench-recorder: setup
	@$(BIN)/python -m bench.recorder_sessions

# mixed load with the flight recorder and its triggers on, and a check of all that was kept
HOURS ?= 1
bench-recorder-day: setup
	@$(BIN)/python -m bench.recorder_day --hours $(HOURS)

# as root, with perf
bench-flame: setup
	@$(BIN)/python -m bench.flame

# the open questions of a published study: docs/latency-puzzle.md, docs/open-questions.md
bench-puzzle: setup
	@$(BIN)/python -m bench.latency_puzzle
	@$(BIN)/python -m bench.latency_puzzle --part client --reads 16

bench-observer: setup
	@$(BIN)/python -m bench.observer_effect

bench-ring: setup
	@$(BIN)/python -m bench.ring_overflow

bench-storm: setup
	@$(BIN)/python -m bench.lwlock_storm

# builds PostgreSQL from source
bench-layouts: setup
	@$(BIN)/python -m bench.layouts

# some twenty minutes on two processors; the table of docs/method.md
bench-scenarios: setup-dev
	@$(BIN)/python -m bench.scenarios $(SCENARIOS)

# five minutes; the machine should be idle
bench-own-cost: setup
	@$(BIN)/python -m bench.own_cost

# a quarter of an hour: a day of simulated rows; with REAL_MINUTES=60 the day begins with an hour of
# real ones, and that hour comes on top
bench-spool: setup
	@$(BIN)/python -m bench.spool $(if $(REAL_MINUTES),--real-minutes $(REAL_MINUTES))

# 35 minutes; the machine should be idle: a server of 500 sessions, 10,000 transactions a second
bench-agent-cost: setup
	@$(BIN)/python -m bench.agent_cost

# twenty minutes, and 60 MB of memory and 50 MB of disk a server; the machine should be idle
SERVERS ?= 100
bench-agent-fleet: setup
	@$(BIN)/python -m bench.agent_fleet --servers $(SERVERS)

# six minutes, with postgresql-15 and postgresql-15-pg-wait-sampling
bench-wait-sampling: setup
	@$(BIN)/python -m bench.wait_sampling

# an hour on 15 and 18 at once (MINUTES=4 for a short one); AGENT_HOUR=FILE writes the result as JSON
bench-agent-hour: setup-dev
	@$(BIN)/python -m bench.agent_hour --minutes $(or $(MINUTES),60) \
	  $(if $(AGENT_HOUR),--out $(AGENT_HOUR))

# a minute: simulated rows of a day, and every view of the page; SERVERS=100 takes some minutes
SERVERS ?= 1
bench-live: setup-dev
	@$(BIN)/python -m bench.live --servers $(SERVERS)

# ten minutes on two processors; servers of other versions: make servers
bench-fleet: setup-dev
	@$(BIN)/python -m bench.fleet $(if $(FLEET_SECONDS),--seconds $(FLEET_SECONDS))

# some minutes and gigabytes: rows of 1,000 servers on ClickHouse's engine in process; STORE="--hours
# 1 --servers 100" for fewer
bench-store: setup-dev
	@$(BIN)/python -m bench.store $(STORE)

# ten minutes, with Prometheus (Debian: apt-get install prometheus); MINUTES=4 for fewer
bench-metrics: setup-dev
	@$(BIN)/python -m bench.metrics --minutes $(or $(MINUTES),10)

# two minutes: a simulated fleet and one ten times larger, in one process, in four, and on Dask
bench-fleet-report: setup-dev
	@$(BIN)/python -m bench.fleet_report $(FLEET_REPORT)

# some minutes on one processor: 4,000 simulated fleets of each kind; the table of
# docs/fleet-statistics.md
bench-fleet-coverage: setup
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m bench.fleet_coverage

# some minutes on one processor: how often guards stop a fleet, and after how many transactions
bench-fleet-guards: setup
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m bench.fleet_guards

bench-trace: setup
	@$(BIN)/python -m bench.trace

# what a trace costs, by level and load, on 18 and 15: 20 minutes
bench-trace-cost: setup
	@$(BIN)/python -m bench.trace_cost

# five minutes of damaged and senseless traces
fuzz-trace: setup-dev
	@$(BIN)/python -m tests.unit.fuzz_trace 300

# uv (from PyPI) resolves; pip installs
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra build pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra build --extra dev pyproject.toml -o requirements-dev.lock

# the command: sdist and wheel, with everything in C compiled, in dist/
wheel: setup-dev
	@$(BIN)/python packaging/pypi/wheel.py dist

# all packages that can be built here, in dist/; those of Debian and RPM need their tools, and
# PG_MAJORS their server headers
PG_MAJORS ?= 15
packages: wheel
	@packaging/pgxn/archive.sh dist
	@if command -v pg_buildext >/dev/null; then packaging/debian/build.sh dist $(PG_MAJORS); \
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

# asks every other site that the pages name; needs the network
docs-links: setup-dev
	@$(SPHINX) -b linkcheck docs docs/_build/links

clean:
	rm -rf $(VENV) demo dist build docs/_build

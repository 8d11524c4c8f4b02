# Two commands on a fresh machine: `make demo` and `make test`.
# Rust 1.88 or newer and a C compiler are all that is needed; `make test` installs its test clients itself.

SHELL := /bin/bash
CARGO ?= cargo
RELEASE := target/release/flashcell
PREFIX ?= /usr/local
DESTDIR ?=
SHARE = $(DESTDIR)$(PREFIX)/share
LIB = $(DESTDIR)/usr/lib
SEEDS ?= 0..2000
# What `make mutants` breaks, and which part of it: SAMPLE=0/40 is every fortieth, in about a quarter of an hour
CRATE ?= flashcache
SAMPLE ?=
# Client operations of each seed; ten thousand long ones: make sim SEEDS=0..10000 OPERATIONS=5000
OPERATIONS ?= 2000

.PHONY: help demo test lint bench sim soak build check-rust clients fuzz mutants demo-postgres install uninstall deb

help:
	@echo "make demo   the main job end to end, in a temporary directory (no root, no packages)"
	@echo "make demo-postgres  PostgreSQL without flash, with it, and on flash alone (installs postgresql, says so; needs root)"
	@echo "make test   everything CI runs; installs its test clients first (says so)"
	@echo "make install  program, man pages, completions, systemd units, udev rules (PREFIX=/usr/local DESTDIR=)"
	@echo "make deb    a Debian package in target/debian"
	@echo "make lint   format, clippy"
	@echo "make bench  the speed rows, side by side with fio, nbdkit and qemu-nbd"
	@echo "make sim    many seeds of the simulator (SEEDS=A..B OPERATIONS=N)"
	@echo "make soak   long crash loops on devices that forget un-flushed writes, power cuts, and loops in guests"
	@echo "make fuzz   every fuzz target for ten minutes (needs cargo-fuzz)"
	@echo "make mutants do the tests of a crate, and seeds, find faults? hours (CRATE=flashcache SAMPLE=K/N; needs cargo-mutants)"

check-rust:
	@scripts/check-rust

build: check-rust
	$(CARGO) build --release --locked -p flashcell

# Units, rules and the like lie below /usr/lib and /etc wherever PREFIX is: systemd and udev look there (below /usr/local/lib as well).
install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/man/man1 $(SHARE)/doc/flashcell/guide $(SHARE)/doc/flashcell/examples
	strip -o $(DESTDIR)$(PREFIX)/bin/flashcell $(RELEASE)
	chmod 755 $(DESTDIR)$(PREFIX)/bin/flashcell
	ln -sf flashcell $(DESTDIR)$(PREFIX)/bin/cellcli
	ln -sf flashcell $(DESTDIR)$(PREFIX)/bin/dcli
	manual=$$(mktemp -d) && trap 'rm -rf "$$manual"' EXIT && $(RELEASE) manual "$$manual" && \
	install -m 644 "$$manual"/man1/* $(SHARE)/man/man1/ && \
	install -Dm 644 -t $(SHARE)/bash-completion/completions "$$manual"/bash/* && \
	install -Dm 644 -t $(SHARE)/zsh/site-functions "$$manual"/zsh/* && \
	install -Dm 644 -t $(SHARE)/fish/vendor_completions.d "$$manual"/fish/*
	install -m 644 README.md CHANGELOG.md LICENSE docs/*.md $(SHARE)/doc/flashcell/
	install -m 644 docs/guide/*.md $(SHARE)/doc/flashcell/guide/
	install -m 644 packaging/examples/* packaging/*.json packaging/*.yml $(SHARE)/doc/flashcell/examples/
	install -Dm 644 -t $(LIB)/systemd/system packaging/systemd/flashcell@.service packaging/systemd/flashcell-attach@.service
	sed -i 's,/usr/bin/flashcell,$(PREFIX)/bin/flashcell,; s,/usr/share/doc,$(PREFIX)/share/doc,' $(LIB)/systemd/system/flashcell@.service $(LIB)/systemd/system/flashcell-attach@.service
	install -Dm 644 packaging/systemd/sysusers.conf $(LIB)/sysusers.d/flashcell.conf
	install -Dm 644 packaging/systemd/tmpfiles.conf $(LIB)/tmpfiles.d/flashcell.conf
	install -Dm 644 packaging/udev/65-flashcell.rules $(LIB)/udev/rules.d/65-flashcell.rules
	install -Dm 644 packaging/needrestart.conf $(DESTDIR)/etc/needrestart/conf.d/flashcell.conf
	install -d $(LIB)/flashcell
	sed -n 's/^pub const FORMAT_VERSION: u32 = \([0-9]*\);/\1/p' crates/celldisk/src/layout.rs >$(LIB)/flashcell/format
	chmod 644 $(LIB)/flashcell/format

# What install has put in place; cells and what is on their devices stay.
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/flashcell $(DESTDIR)$(PREFIX)/bin/cellcli $(DESTDIR)$(PREFIX)/bin/dcli
	rm -f $(SHARE)/man/man1/flashcell*.1 $(SHARE)/man/man1/cellcli.1
	rm -f $(SHARE)/bash-completion/completions/flashcell.bash $(SHARE)/bash-completion/completions/cellcli.bash
	rm -f $(SHARE)/zsh/site-functions/_flashcell $(SHARE)/zsh/site-functions/_cellcli
	rm -f $(SHARE)/fish/vendor_completions.d/flashcell.fish $(SHARE)/fish/vendor_completions.d/cellcli.fish
	rm -rf $(SHARE)/doc/flashcell
	rm -f $(LIB)/systemd/system/flashcell@.service $(LIB)/systemd/system/flashcell-attach@.service
	rm -f $(LIB)/sysusers.d/flashcell.conf $(LIB)/tmpfiles.d/flashcell.conf $(LIB)/udev/rules.d/65-flashcell.rules
	rm -f $(DESTDIR)/etc/needrestart/conf.d/flashcell.conf
	rm -rf $(LIB)/flashcell

deb: build
	scripts/package-deb target/debian

# A build for those who want to see it: in half the time of a release, whose figures it has.
demo: check-rust
	$(CARGO) build --profile lean --locked -p flashcell
	target/lean/flashcell demo

demo-postgres: build clients
	scripts/demo-postgres

lint: check-rust
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --release --locked -- -D warnings

clients:
	@scripts/install-test-clients

# build before lint: they share what is made for macros.
test: check-rust clients build lint
	scripts/test

bench: build clients
	bench/run

sim: build
	$(RELEASE) sim --seeds $(SEEDS) --operations $(OPERATIONS) --keep-going

soak: build clients
	tests/e2e/run --soak
	tests/guest/run --long

fuzz:
	scripts/fuzz 600

mutants: check-rust
	scripts/mutants $(CRATE) $(SAMPLE)

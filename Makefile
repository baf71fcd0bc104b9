# One name for each thing a developer does; `.ci/run` is what a change has to pass.

CARGO ?= cargo
# rustup's folder may be missing from the PATH of a fresh shell.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: all setup build run test fmt lint doc bench clean

all: build

# Installs missing system packages.
setup:
	@scripts/setup.sh

build: setup
	$(CARGO) build --release --workspace

run: build
	@scripts/run_main.sh

test: setup
	@scripts/setup_ptxas.sh || echo 'SKIP: ptxas could not be fetched; PTX will not be assembled'
	$(CARGO) test --workspace -- --quiet

fmt:
	$(CARGO) fmt --all

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: setup
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

bench: setup
	$(CARGO) bench -p cora-bench

clean:
	$(CARGO) clean

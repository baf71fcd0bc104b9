# One name for each thing a developer does; `.ci/run` is what a change has to pass.

CARGO ?= cargo
# rustup's folder may be missing from the PATH of a fresh shell.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: all setup build run test fmt lint doc bench criterion clean

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

# The paper's experiments beside their peers, then figures and tables. PARTS="encoder vgemm" takes some of them; what is
# in RESULTS already is not measured again.
RESULTS ?= $(or $(CARGO_TARGET_DIR),target)/results
PARTS ?=
bench: build
	@scripts/setup_peers.sh
	$(or $(CARGO_TARGET_DIR),target)/release/cora bench suite $(PARTS) --dir $(RESULTS) $(BENCH_FLAGS)
	$(or $(CARGO_TARGET_DIR),target)/release/cora bench report --dir $(RESULTS)

# Each stage of the compiler and each kernel.
criterion: setup
	$(CARGO) bench -p cora-bench

clean:
	$(CARGO) clean

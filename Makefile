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

# What this machine lacks for some test is counted: the output of tests that pass is not shown.
SKIPS := $(abspath $(or $(CARGO_TARGET_DIR),target))/skips.txt
test: setup
	@mkdir -p $(dir $(SKIPS)) && : > $(SKIPS)
	@scripts/setup_ptxas.sh || echo 'SKIP ptxas could not be fetched: PTX will not be assembled' >> $(SKIPS)
	CORA_SKIPS=$(SKIPS) $(CARGO) test --workspace -- --quiet; code=$$?; \
	sort $(SKIPS); echo "$$(wc -l < $(SKIPS)) skipped"; exit $$code

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

#!/usr/bin/env bash
# Runs the first example with the release build and checks it against the reference. Started by `make run`.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${CARGO_TARGET_DIR:-target}/release/cora" run examples/listing1.cora --check

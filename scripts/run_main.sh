#!/usr/bin/env bash
# The main job: the encoder layer on a batch of 32 synthetic sequences, checked against the reference
# interpreter, then the same program fully padded, for the ratio. Started by `make run`.
set -euo pipefail
cd "$(dirname "$0")/.."
cora="${CARGO_TARGET_DIR:-target}/release/cora"
lengths=examples/data/lengths_sample.txt
batch=(--param M=32 --lengths "lens=$lengths" --repeat 15)

"$cora" run examples/encoder_layer.cora "${batch[@]}" --check --compare-padded

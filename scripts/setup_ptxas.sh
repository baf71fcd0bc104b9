#!/usr/bin/env bash
# Fetches NVIDIA's assembler and disassembler for the tests that assemble PTX, from their Python wheels, into the target
# folder. Tests skip without them.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
tool=$target/ptxas/nvidia/cuda_nvcc/bin/ptxas
disassembler=$target/nvdisasm/nvidia/cu13/bin/nvdisasm
fetch() { python3 -m pip install --quiet --no-deps --disable-pip-version-check --target "$target/$1" "$2"; }
# 12.9 is the last release that still has sm_70.
[[ -x $tool ]] || fetch ptxas nvidia-cuda-nvcc-cu12==12.9.86
"$tool" --version >/dev/null
[[ -x $disassembler ]] || fetch nvdisasm nvidia-cuda-nvdisasm==13.2.78
"$disassembler" --version >/dev/null

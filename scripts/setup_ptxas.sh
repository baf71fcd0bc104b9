#!/usr/bin/env bash
# Fetches NVIDIA's assembler for the tests that assemble PTX, from its Python wheel, into the target folder. Tests skip without it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
tool=$target/ptxas/nvidia/cuda_nvcc/bin/ptxas
[[ -x $tool ]] && exit 0
# 12.9 is the last release that still has sm_70.
python3 -m pip install --quiet --no-deps --disable-pip-version-check --target "$target/ptxas" nvidia-cuda-nvcc-cu12==12.9.86
"$tool" --version >/dev/null

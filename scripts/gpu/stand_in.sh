#!/usr/bin/env bash
# Starts a command for which `cora-ptxsim` is the CUDA driver: scripts/gpu/stand_in.sh cora run PROGRAM --target cuda --check
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
if [ $# -eq 0 ]; then
  echo "usage: $0 COMMAND [ARGUMENTS]" >&2
  exit 2
fi
(cd "$root" && cargo build --quiet --release -p cora-ptxsim)
folder=$target/release/stand-in
mkdir -p "$folder"
ln -sf "$(realpath "$target/release/libcora_ptxsim.so")" "$folder/libcuda.so"
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$target/release:$PATH
exec "$@"

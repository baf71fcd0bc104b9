#!/usr/bin/env bash
# Checks and times what scripts/gpu/bundle.py packed, on a machine with an NVIDIA GPU; `run.sh --help` says how.
#   run.sh [--out FOLDER] [--minutes 9] [--dry-run] [PART...]
# What FOLDER/results.jsonl has is not done again, so that a run can be cut off and continued. No setting of the card is changed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
unpacked=${CORA_UNPACK:-$here}
[[ -d $unpacked/bundle ]] || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
    "$here/bundle.tar.xz" "$unpacked"
exec python3 "$unpacked/bundle/run.py" "$@"

#!/usr/bin/env bash
# Installs what `cora bench --peers` compares with, into a virtual environment under the target folder: PyTorch,
# TensorFlow, OpenVINO, MKL, OpenBLAS, SciPy. Uses the index that pip is set up with; where that offers PyTorch for CPUs
# alone the whole is about 3 GB, else 8 GB. Does nothing, quickly, when all are there.
set -euo pipefail
cd "$(dirname "$0")/.."

folder="${CARGO_TARGET_DIR:-target}/peers"
python="$folder/venv/bin/python"
packages=(numpy scipy mkl scipy-openblas32 openvino tensorflow-cpu torch)

fail() {
    echo "setup_peers: $*" >&2
    exit 1
}

mkdir -p "$folder"
if [[ ! -x "$python" ]]; then
    command -v python3 >/dev/null || fail "python3 is missing"
    python3 -m venv "$folder/venv" || fail "python3 cannot make virtual environments; install its venv module"
fi

missing=()
for package in "${packages[@]}"; do
    "$python" -c "import importlib.metadata as m; m.version('$package')" 2>/dev/null || missing+=("$package")
done
if ((${#missing[@]})); then
    free=$(df --output=avail -BG "$folder" | tail -1 | tr -dc 0-9)
    ((free >= 12)) || fail "needs 12 GB of disk, and $folder has $free"
    echo "setup_peers: installing ${missing[*]}"
    # One at a time: a package that this machine's index or Python does not have leaves the others usable.
    for package in "${missing[@]}"; do
        "$python" -m pip install --quiet --no-cache-dir --disable-pip-version-check "$package" ||
            echo "setup_peers: $package cannot be installed; its peers will be skipped" >&2
    done
fi
"$python" -c "
import importlib.metadata as m
for p in '${packages[*]}'.split():
    try: print('setup_peers:', p, m.version(p))
    except m.PackageNotFoundError: print('setup_peers:', p, 'missing')"

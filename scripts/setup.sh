#!/usr/bin/env bash
# Installs the system packages that the build needs. Does nothing, quickly, when all are there.
set -euo pipefail

# LLVM and MLIR with every library llvm-config names (Polly, Z3, zstd, zlib), libclang for bindgen, lld for artifacts,
# a C++ compiler for the table generator, Z3 for the prover, OpenBLAS for what programs offload (found at run time; the
# tests that call it are skipped without it).
packages=(
    llvm-22-dev libmlir-22-dev mlir-22-tools libpolly-22-dev libclang-22-dev clang-22 lld-22
    libz3-dev libzstd-dev zlib1g-dev pkg-config g++ make libopenblas0-pthread
)

fail() {
    echo "setup: $*" >&2
    exit 1
}

if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    if [[ -x "$HOME/.cargo/bin/cargo" ]]; then
        fail "cargo is in $HOME/.cargo/bin, which is not on the PATH; run: . \"\$HOME/.cargo/env\""
    fi
    fail "cargo and rustc are missing; install Rust (the version in Cargo.toml or newer) with rustup"
fi

command -v dpkg-query >/dev/null ||
    fail "not a Debian system; install by hand what these hold, and set the paths in .cargo/config.toml: ${packages[*]}"

# One query, since each costs a process. Purged and half-installed packages are listed too, so the status word counts;
# packages unknown to dpkg are an error there and missing here.
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
    [[ $'\n'"$installed"$'\n' == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
done

if ((${#missing[@]})); then
    as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "run as root, or install: ${missing[*]}"
        as_root=(sudo)
    fi
    echo "setup: installing ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

[[ -x /usr/lib/llvm-22/bin/llvm-config ]] ||
    fail "/usr/lib/llvm-22/bin/llvm-config is missing although its package is installed"

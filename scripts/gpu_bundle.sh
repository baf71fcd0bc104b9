#!/usr/bin/env bash
# Makes a folder to carry to a machine with an NVIDIA GPU and its driver, and nothing else: an artifact of each example
# under its own and the compiler's schedule, with inputs and the reference interpreter's results, and what runs them.
#   scripts/gpu_bundle.sh FOLDER [ARCHITECTURE]      here
#   FOLDER/run.sh [REPEAT]                           there: checks every result, prints kernel times
set -euo pipefail
out=${1:?usage: scripts/gpu_bundle.sh FOLDER [ARCHITECTURE]}
arch=${2:-sm_80}
cd "$(dirname "$0")/.."
mkdir -p "$out"
out=$(cd "$out" && pwd)
profile=${CORA_PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --profile "${profile/debug/dev}" --bin cora
cargo build --quiet --profile "${profile/debug/dev}" -p cora-runtime --bin cora-exec
cp "$target/$profile/cora-exec" "$out/"
for program in examples/*.cora; do
    name=$(basename "$program" .cora)
    for schedule in cuda default; do
        [[ $schedule == cuda ]] && ! grep -q '^schedule cuda' "$program" && continue
        # The emulation is the reference's own time again; a program that takes too long is left out, and said so.
        status=0
        timeout 300 "$target/$profile/cora" run "$program" --target "cuda:$arch" --schedule "$schedule" --emulate \
            --artifact "$out/$name-$schedule.artifact" >"$out/log" 2>&1 || status=$?
        case $status in
        0) ;;
        124) echo "SKIP $name ($schedule): its emulation takes more than 300 s" ;;
        *)
            cat "$out/log"
            echo "FAILED $name ($schedule): exit code $status"
            exit 1
            ;;
        esac
    done
done
cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs every artifact here, checks its results, prints times. Exit code 1 if one fails.
cd "$(dirname "$0")" || exit 1
failed=0
for artifact in *.artifact; do
    echo "== $artifact"
    ./cora-exec "$artifact" --repeat "${1:-20}" || failed=1
done
exit $failed
RUN
chmod +x "$out/run.sh"
rm -f "$out/log"
echo "$(find "$out" -name '*.artifact' | wc -l) artifacts in $out"

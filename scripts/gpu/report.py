#!/usr/bin/env python3
"""Tables of `results.jsonl` (scripts/gpu/run.sh), and the targets beside what was measured: `report.py FILE... > PAGE.md`."""

import json
import math
import sys
from pathlib import Path


def geomean(values):
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def read(files):
    lines = {}
    for file in files:
        for text in Path(file).read_text().splitlines():
            if text.strip():
                line = json.loads(text)
                lines[line["part"], line["key"]] = line
    return lines


def of(lines, part, ok=True):
    return {k: v for (p, k), v in lines.items() if p == part and k != "end" and (v["ok"] or not ok)}


def ratios(lines, part, peers, keys=None, ours=()):
    """For each measurement how often slower than the fastest of `ours` (the first form) the fastest of these peers is."""
    out = []
    for key, line in of(lines, part).items():
        found = [line["ratios"][p] for p in peers if p in line["ratios"]]
        if found and (keys is None or key in keys):
            out.append(min(found) / min((line["ratios"][o] for o in ours if o in line["ratios"]), default=1))
    return out


def matmul_share(lines):
    """The fp32 kernels that are dense products, over the vendor's on the same shape: the least of them."""
    shares = []
    for line in of(lines, "operators").values():
        ours = next(iter(line["kernels"].values()))
        shares += [line["ms"][k] / ours[k] for k in ("QKV", "A", "F", "R") if k in line["ms"] and k in ours]
    return min(shares, default=None)


def share(lines, key):
    line = of(lines, "prelude").get(f"{key} encoder6")
    return line["share"] if line else None


def targets(lines):
    """What is wanted, what was measured, the bound, and whether less is better."""
    split, projections = ["trmm-split-balanced"], ["projection-bf16", "projection-bf16-wgmma", "projection-bf16-tma"]
    over = lambda *a, **k: geomean(ratios(lines, *a, **k))
    rows = len(ratios(lines, "encoder", ["torch-padded"]))
    return [
        (f"encoder fp32 over PyTorch padded, geomean of {rows} of 24 rows", over("encoder", ["torch-padded"]), 2.0, False),
        (f"encoder fp32 over the best varlen form of PyTorch, geomean of {rows} of 24 rows", over("encoder", ["torch-varlen", "torch-nested", "torch-each"]), 1.1, False),
        ("vgemm over cuBLAS, one product after the other, geomean", over("vgemm", ["cublas-loop"]), 1.0, False),
        ("vgemm over cuBLAS, padded batch, geomean", over("vgemm", ["cublas-padded"]), 1.5, False),
        ("trmm split-balanced over cuBLAS trmm, geomean", over("trmm", ["cublas-trmm"], ours=split), 1.0, False),
        ("dense fp32 kernels over cuBLAS, the least", matmul_share(lines), 0.9, False),
        ("encoder bf16 over PyTorch bf16 varlen, race/128", over("bf16", ["torch-bf16-varlen"], keys=["encoder race/128"]), 1.0, False),
        ("bf16 projection over cuBLAS bf16, race/128", over("bf16", ["cublas-bf16"], keys=["race/128"], ours=projections), 0.8, False),
        ("prelude and copy over six layers, race/128", share(lines, "race/128"), 0.003, True),
        ("prelude and copy over six layers, cola/32", share(lines, "cola/32"), 0.02, True),
    ]  # fmt: skip


def number(x):
    return "not measured" if x is None else f"{x:.3g}"


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    lines = read(sys.argv[1:])
    cards = list(of(lines, "ceilings").items())
    print(f"# On {cards[0][0] if cards else 'an unknown GPU'}\n\nMedians by events, caches flushed before each run.\n")
    if cards:
        table(["ceiling", "measured"], [[k, f"{v:.4g}"] for k, v in cards[0][1].items() if k not in ("part", "key", "ok")])
    print("## Targets\n")
    rows = []
    for what, got, bound, less in targets(lines):
        met = "" if got is None else "yes" if (got <= bound) == less or got == bound else "**no**"
        rows.append([what, ("≤ " if less else "≥ ") + f"{bound:g}", number(got), met])
    table(["target", "wanted", "measured", "met"], rows)
    print("## Checks\n")
    rows = []
    for part in sorted({p for p, k in lines if p not in ("ceilings",) and k != "end"}):
        all_ = of(lines, part, ok=False)
        right = [v for v in all_.values() if v["ok"]]
        samples = sum(v.get("samples", 0) for v in right)
        wrong = ", ".join(k for k, v in all_.items() if not v["ok"])
        rows.append([part, str(len(right)), str(samples or ""), str(sum(v.get("kernels", 0) for v in right) if samples else ""), wrong])
    table(["part", "right", "samples", "kernels", "wrong"], rows)
    for part in sorted({p for p, _ in lines}):
        found = {k: v for k, v in of(lines, part).items() if "ms" in v}
        if not found:
            continue
        forms = list(dict.fromkeys(f for v in found.values() for f in v["ms"]))
        print(f"## {part}\n\nMilliseconds; in brackets over the first.\n")
        cell = lambda v, f: f"{v['ms'][f]:.4g} ({v['ratios'][f]:.2f}x)" if f in v["ms"] else ""
        table(["", *forms], [[k, *[cell(v, f) for f in forms]] for k, v in found.items()])
        kernels = {k: next(iter(v["kernels"].values()), {}) for k, v in found.items()}
        names = list(dict.fromkeys(n for v in kernels.values() for n in v))
        if len(names) > 1:
            table(["our kernels", *names], [[k, *[f"{v[n]:.4g}" if n in v else "" for n in names]] for k, v in kernels.items()])
        for name, why in {n: w for v in found.values() for n, w in v.get("skipped", {}).items()}.items():
            print(f"- `{name}` was skipped: {why}")
        print()
    found = of(lines, "prelude")
    if found:
        names = ["prelude_ms", "copy_ms", "table_bytes", "total_ms", "share"]
        print("## prelude\n")
        table(["", *names], [[k, *[f"{v[n]:.4g}" for n in names]] for k, v in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())

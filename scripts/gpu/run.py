#!/usr/bin/env python3
"""Checks, then times, what is in this folder. Each part that ends is a line of `results.jsonl` in the folder of results, and
each measurement one; what is there is not done again. Results of an earlier run may also lie beside this file.

  run.sh [--out FOLDER] [--minutes 9] [--repeat 20] [--rounds 3] [--quick] [--dry-run] [PART...]

Checks: samples, tables, graphs, streams, random, sanitizer. Times: ceilings, encoder, operators, vgemm, trmm, masked, splitting,
padding, overheads, elementwise, prelude, bf16. Without a part: all, in this order. `--dry-run` only reads every artifact;
`--quick` takes tiny batches, as a trial of the measurements: a bundle for processors (`bundle.py --arch cpu`) goes through all
that is not for GPUs alone. Results of several bundles of random programs add up in one folder.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKS = ["samples", "tables", "graphs", "streams", "random", "sanitizer"]
TIMES = [
    "ceilings", "encoder", "operators", "vgemm", "trmm", "masked", "splitting", "padding", "overheads", "elementwise", "prelude",
    "bf16",
]  # fmt: skip
NAMES = ["race", "wiki512", "squad", "wiki128", "mnli", "xnli", "mrpc", "cola"]
# How often a layer has each of its operators, where each is a program with tables of its own.
OPERATORS = {"proj1": 1, "qkt": 1, "softmax": 1, "attnv": 1, "proj2": 1, "layer-norm": 2, "ff1": 1, "ff2": 1}
# More than the second-level cache of any card.
FLUSH_MIB = 256


class OutOfTime(Exception):
    """The rest is for the next run."""


class Runner:
    def __init__(self, args):
        self.args, self.end = args, time.monotonic() + 60 * args.minutes
        self.on_gpu = json.loads((HERE / "about.json").read_text())["arch"] != "cpu"
        args.out.mkdir(parents=True, exist_ok=True)
        self.results = args.out / "results.jsonl"
        self.lines = []
        for file in {self.results, HERE / "results.jsonl"}:
            if file.exists():
                self.lines += [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        self.done = {(line["part"], line["key"]) for line in self.lines if line.get("ok")}
        self.failed = []

    def keep(self, part, key, **what):
        line = {"part": part, "key": key, **what}
        with self.results.open("a") as f:
            f.write(json.dumps(line) + "\n")
        self.lines.append(line)
        if what.get("ok"):
            self.done.add((part, key))
        else:
            self.failed.append(f"{part}: {key}")
            print(f"FAILED {part}: {key}: {what.get('error', '')}", flush=True)

    def left(self):
        left = self.end - time.monotonic()
        if left < 5:
            raise OutOfTime
        return left

    def exec(self, artifacts, *options, before=()):
        """Reports of cora-exec, its exit code and what it said."""
        args = [*before, HERE / "cora-exec", *artifacts, *options, "--json"]
        try:
            done = subprocess.run(args, capture_output=True, text=True, timeout=self.left(), check=False)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return reports, done.returncode, (done.stderr + done.stdout)[-4000:]

    def check(self, part, folder, *options, before=(), each=50, only=lambda p: True):
        """Runs the samples of artifacts, so many in a process; one that spoils the device is run again by itself."""
        files = [p for p in sorted((HERE / folder).glob("*.artifact")) if only(p) and (part, p.stem) not in self.done]
        while files:
            some, files = files[:each], files[each:]
            reports, code, text = self.exec(some, "--check", *options, before=before)
            if before and "Device not supported" in text:
                print(f"SKIP {part}: {before[0]} does not support this device")
                return
            found = {Path(r["artifact"]).stem: r for r in reports}
            clean = not before or "ERROR SUMMARY: 0 errors" in text or "RACECHECK SUMMARY: 0 hazards" in text
            failed = any(p.stem not in found or found[p.stem].get("error") for p in some)
            if len(some) > 1 and (code not in (0, 3) or failed or not clean):
                # Which of them it is.
                kept = [] if before else [p for p in some if p.stem in found and found[p.stem]["ok"]]
                each, files = (1, [p for p in some if p not in kept] + files)
                some = kept
            for p in some:
                r = found.get(p.stem, {"ok": False, "error": text})
                ok = bool(r["ok"]) and clean
                error = "" if ok else r.get("error") or text
                sizes = {"samples": r.get("batches", 0), "kernels": len(r.get("kernels", [])), "tables": r.get("device_tables")}
                self.keep(part, p.stem, ok=ok, **sizes, **({"error": error} if error else {}))

    def sequences(self, dataset, batch):
        batch = min(batch, 2) if self.args.quick else batch
        lines = (HERE / "lengths" / f"{dataset}.txt").read_text().split()
        return [int(x) for x in lines[:batch]] if len(lines) >= batch else None


def checks(r, part):
    """Whether the part could be done."""
    if not r.on_gpu and part in ("graphs", "streams", "sanitizer"):
        print(f"SKIP {part}: the artifacts are for a processor")
        return False
    if part == "samples":
        r.check("samples", "samples", "--poison", each=8)
    elif part == "tables":
        r.check("tables", "tables", "--poison", each=8)
        if r.on_gpu:
            r.check("tables-graph", "tables", "--poison", "--graph", each=8)
    elif part == "graphs":
        r.check("graphs", "samples", "--poison", "--graph", each=8)
    elif part == "streams":
        r.check("streams", "samples", "--poison", "--streams", "2", "--repeat", "4", each=8)
    elif part == "random":
        r.check("random", "random", "--poison")
    elif not shutil.which("compute-sanitizer"):
        print("SKIP sanitizer: compute-sanitizer is not on the PATH")
        return False
    else:
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            small = lambda p: p.stat().st_size < 1 << 20
            before = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            r.check(f"sanitizer-{tool}", "samples", before=before, each=4, only=small)
    return True


class Timing:
    """Ours and the peers in turn, on the same inputs."""

    def __init__(self, r):
        try:
            import peers  # noqa: PLC0415
            import torch  # noqa: PLC0415
        except ImportError as e:
            raise SystemExit(f"timing wants PyTorch: {e}") from None
        torch.set_grad_enabled(False)
        peers.precise()
        self.r, self.peers, self.np = r, peers, __import__("numpy")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.clock = peers.Clock(self.device)
        self.torch = torch
        self.rng = self.np.random.default_rng(1)

    def case(self, part, key, artifacts, options, arrays, forms, output, within=1e-4, longest=None):
        """A measurement: the first artifact's result is what peers are compared with. `longest` is the same for a batch whose
        rows are all as long as the longest, of which only the time is taken."""
        r, np = self.r, self.np
        if (part, key) in r.done:
            return
        missing = [a for a in artifacts if not (HERE / "work" / f"{a}.artifact").exists()]
        artifacts = [a for a in artifacts if a not in missing]
        if not artifacts:
            print(f"SKIP {part} {key}: no artifact {', '.join(missing)}")
            return
        r.left()
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as tmp:
            given = []
            for name, a in arrays.items():
                np.save(f"{tmp}/{name}.npy", a)
                given += ["--input", f"{name}={tmp}/{name}.npy"]
            common = ["--repeat", str(r.args.repeat), *(["--flush", str(FLUSH_MIB)] if r.on_gpu else [])]
            options = [*options(Path(tmp)), *given, *common]
            (Path(tmp) / "longest").mkdir()
            raised = [*longest(Path(tmp) / "longest"), *common] if longest else []
            out = f"{tmp}/out.npy"
            times, kernels, wrong, skipped, want = {}, {}, [], {}, None
            for turn in range(r.args.rounds):
                for a in artifacts:
                    more = ["--output", f"{output}={out}"] if turn == 0 and output else []
                    reports, code, text = r.exec([HERE / "work" / f"{a}.artifact"], *options, *more)
                    if code != 0 or not reports:
                        r.keep(part, key, ok=False, error=f"{a}: {text}")
                        return
                    times.setdefault(a, []).append(reports[0]["total_ms"])
                    kernels.setdefault(a, []).append({k["kernel"]: k["ms"] for k in reports[0]["kernels"]})
                    if more:
                        got = self.peers.floats(np.load(out)).reshape(-1)
                        want = got if want is None else want
                        if self.peers.difference(got, want) > within:
                            wrong.append(a)
                if raised:
                    reports, code, text = r.exec([HERE / "work" / f"{artifacts[0]}.artifact"], *raised)
                    if code != 0 or not reports:
                        r.keep(part, key, ok=False, error=f"longest: {text}")
                        return
                    times.setdefault("longest", []).append(reports[0]["total_ms"])
                if turn == 0:
                    made = forms() if forms else []
                for name, run, read in made:
                    if run is None:
                        skipped[name] = read
                        continue
                    if turn == 0 and want is not None and read is not None:
                        off = self.peers.difference(read(), want)
                        if off > (0.05 if "bf16" in name else within):
                            wrong.append(f"{name} ({off:.1e})")
                    times.setdefault(name, []).append(self.clock.median(run, r.args.repeat))
                r.left()
            made = None
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
        middle = {k: statistics.median(v) for k, v in times.items()}
        each = {a: {k: statistics.median(t[k] for t in all_) for k in all_[0]} for a, all_ in kernels.items()}
        ours = middle[artifacts[0]]
        ratios = {k: statistics.median(a / b for a, b in zip(times[k], times[artifacts[0]])) for k in middle}
        error = {"error": "other results: " + ", ".join(wrong)} if wrong else {}
        r.keep(part, key, ok=not wrong, ms=middle, ratios=ratios, rounds=times, kernels=each, skipped=skipped, **error)
        print(f"{part} {key}: {ours:.3f} ms; " + ", ".join(f"{k} {v:.2f}x" for k, v in ratios.items()), flush=True)

    def lens_options(self, lens):
        def options(tmp):
            (tmp / "lens.txt").write_text("\n".join(map(str, lens)) + "\n")
            return ["--param", f"M={len(lens)}", "--lengths", f"lens={tmp}/lens.txt"]

        return options

    def on_sequences(self, part, dataset, batch, artifacts, arrays, forms, output, key=None, longest=False, **more):
        many = min(batch, 2) if self.r.args.quick else batch
        lens = [512] * many if dataset == "equal" else self.r.sequences(dataset, batch)
        if lens is None:
            print(f"SKIP {part} {dataset}/{batch}: too few lengths")
            return
        key = f"{key} {dataset}/{len(lens)}" if key else f"{dataset}/{len(lens)}"
        if (part, key) not in self.r.done:
            x = arrays(lens)
            make = (lambda: forms(self.peers.Sequences(self.device, lens, x))) if forms else None
            raised = self.lens_options([max(lens, default=0)] * len(lens)) if longest else None
            self.case(part, key, artifacts, self.lens_options(lens), x, make, output, longest=raised, **more)

    def some(self, cases):
        return cases[:1] if self.r.args.quick else cases

    def random(self, *shape):
        return self.rng.standard_normal(shape, dtype=self.np.float32).reshape(-1)

    def part(self, part):
        getattr(self, part)()

    def ceilings(self):
        key = self.torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        size = 8192 if self.device == "cuda" else 128
        found = self.peers.ceilings(self.clock, self.r.args.repeat, size)
        self.r.keep("ceilings", key, ok=True, **found)
        print(found, flush=True)

    def encoder(self):
        arrays = lambda lens: self.peers.encoder_arrays(lens, self.rng)
        for d in self.some(NAMES):
            for b in self.some((32, 64, 128)):
                self.on_sequences("encoder", d, b, ["encoder", "encoder-tables"], arrays, self.peers.encoder_forms, "Y", longest=True, within=1e-3)

    def operators(self):
        arrays = lambda lens: self.peers.encoder_arrays(lens, self.rng)
        for d, b in (("race", 128), ("cola", 32)):
            # Each kernel of ours is a part of one program: `kernels` has its time.
            timed = lambda s: [(n, run, None if run else read) for n, run, read in self.peers.operator_forms(s)]
            self.on_sequences("operators", d, b, ["encoder", "encoder-default"], arrays, timed, "Y", within=1e-3)

    def vgemm(self):
        lines = [tuple(map(int, x.split())) for x in (HERE / "lengths" / "vgemm_mnk.txt").read_text().splitlines() if x.strip()]
        for count in self.some((2, 4, 8, 16, 32, 64, 128, 256, 512)):
            sizes = lines[:count]
            if ("vgemm", str(count)) in self.r.done or len(sizes) < count:
                continue
            x = {"X": self.random(sum(m * k for m, _, k in sizes)), "Y": self.random(sum(k * n for _, n, k in sizes))}

            def options(tmp, sizes=sizes):
                out = ["--param", f"B={len(sizes)}"]
                for name, column in zip(("ms", "ns", "ks"), zip(*sizes)):
                    (tmp / name).write_text("\n".join(map(str, column)) + "\n")
                    out += ["--lengths", f"{name}={tmp / name}"]
                return out

            forms = lambda sizes=sizes, x=x: self.peers.product_forms(self.device, sizes, x)
            self.case("vgemm", str(count), ["vgemm"], options, x, forms, "C")

    def square(self, part, n, key, artifacts, arrays, forms):
        if (part, key) not in self.r.done:
            x = arrays()
            self.case(part, key, artifacts, lambda _: ["--param", f"N={n}"], x, lambda: forms(x), "C")

    def trmm(self):
        ours = ["trmm-split-balanced", "trmm-split-unbalanced", "trmm-unsplit-unbalanced"]
        for n in self.some((512, 1024, 2048, 4096, 8192)):
            arrays = lambda n=n: {"L": self.random(n * (n + 1) // 2), "X": self.random(n * n)}
            self.square("trmm", n, str(n), ours, arrays, lambda x, n=n: self.peers.trmm_forms(self.device, n, x))

    def elementwise(self):
        for w in ("tradd", "trmul"):
            for n in self.some((128, 512, 2048, 8192)):
                arrays = lambda n=n: {k: self.random(n * (n + 1) // 2) for k in "XY"}
                forms = lambda x, n=n, w=w: self.peers.elementwise_forms(self.device, w, n, x)
                self.square("elementwise", n, f"{w}/{n}", [w], arrays, forms)

    def masked(self):
        arrays = lambda lens: {"QKV": self.random(sum(lens) * 3 * 512)}
        for d in ("race", "mnli"):
            for b in self.some((32, 64, 128)):
                forms = lambda s: self.peers.encoder_forms(s, causal=True)
                self.on_sequences("masked", d, b, ["masked-sdpa"], arrays, forms, "O", longest=True, within=1e-3)

    def qkt_arrays(self, lens):
        return {k: self.random(sum(lens) * 512) for k in "QK"}

    def attnv_arrays(self, lens):
        return {"P": self.random(8 * sum(n * n for n in lens)), "V": self.random(sum(lens) * 512)}

    def splitting(self):
        qkt, attnv = ["qkt", "qkt-split-hfused", "qkt-split2-hfused"], ["attnv", "attnv-split-hfused"]
        for b in self.some((8, 16, 32, 64, 128, 256, 512, 1024)):
            self.on_sequences("splitting", "mnli", b, qkt, self.qkt_arrays, None, "S", key="qkt")
            self.on_sequences("splitting", "mnli", b, attnv, self.attnv_arrays, None, "O", key="attnv")

    def padding(self):
        """Attention whose kernels read and write ragged tensors, and with copies between them that change padding."""
        scaled = {"Wqkv": (512, 1536), "Wo": (512, 512)}

        def arrays(lens):
            weights = {k: self.random(*v) / self.np.float32(self.np.sqrt(v[0])) for k, v in scaled.items()}
            return {"X": self.random(sum(lens) * 512), **weights, "Bqkv": self.random(1536), "Bo": self.random(512)}

        for b in self.some((32, 64, 128)):
            self.on_sequences("padding", "race", b, ["mha", "mha-pad-copies"], arrays, None, "Y")

    def overheads(self):
        """Ragged programs on equal lengths beside the same with a constant, and without hoisted loads."""
        self.on_sequences("overheads", "equal", 64, ["qkt", "qkt-no-hoist"], self.qkt_arrays, None, "S", key="qkt")
        self.on_sequences("overheads", "equal", 64, ["attnv", "attnv-no-hoist"], self.attnv_arrays, None, "O", key="attnv")
        arrays = lambda lens: self.peers.encoder_arrays(lens, self.rng)
        self.on_sequences("overheads", "equal", 64, ["encoder", "encoder-no-hoist"], arrays, None, "Y", key="encoder")
        many = 2 if self.r.args.quick else 64
        dense = lambda _: ["--param", f"M={many}"]
        lens = [512] * many
        for w, arrays, output in (("qkt", self.qkt_arrays, "S"), ("attnv", self.attnv_arrays, "O")):
            if ("overheads", f"{w}-dense") not in self.r.done:
                self.case("overheads", f"{w}-dense", [f"{w}-dense"], dense, arrays(lens), None, output)

    def tables(self, artifact, lens):
        """A report of a program on a batch; nothing where it is not there or fails, which is kept."""
        file = HERE / "work" / f"{artifact}.artifact"
        if not file.exists():
            print(f"SKIP prelude {artifact}: no artifact")
            return None
        with tempfile.TemporaryDirectory() as tmp:
            options = self.lens_options(lens)(Path(tmp))
            reports, code, text = self.r.exec([file], *options, "--repeat", str(self.r.args.repeat))
        if code != 0 or not reports:
            self.r.keep("prelude", artifact, ok=False, error=text)
            return None
        names = ("prelude_ms", "copy_ms", "table_bytes", "total_ms")
        return {n: reports[0][n] or 0 for n in names}

    def prelude(self):
        """Building and copying the tables of six layers: once for all of them (encoder6), for each operator of each layer
        (operators), and as sparse compilers' position arrays (encoder6-csf)."""
        for d, b in (("race", 128), ("race", 32), ("cola", 128), ("cola", 32)):
            lens = self.r.sequences(d, b)
            for form, parts in (("encoder6", {"encoder6": 1}), ("encoder6-csf", {"encoder6-csf": 1}), ("operators", OPERATORS)):
                key = f"{d}/{len(lens or [])} {form}"
                if ("prelude", key) in self.r.done or lens is None:
                    continue
                each = [(self.tables(a, lens), count * (6 if form == "operators" else 1)) for a, count in parts.items()]
                if any(found is None for found, _ in each):
                    continue
                found = {n: sum(x[n] * count for x, count in each) for n in each[0][0]}
                found["share"] = (found["prelude_ms"] + found["copy_ms"]) / found["total_ms"]
                self.r.keep("prelude", key, ok=True, **found)
                print(f"prelude {key}: {found}", flush=True)

    def bf16(self):
        half = lambda x: (x.view(self.np.uint32) >> 16).astype(self.np.uint16)
        arrays = lambda lens: {
            "X": half(self.random(sum(lens) * 512)), "W": half(self.random(512 * 512)), "B": self.random(512),
        }  # fmt: skip
        layer = lambda lens: {
            k: half(x) if k[0] in "XW" else x for k, x in self.peers.encoder_arrays(lens, self.rng).items()
        }
        forms = lambda s: self.peers.encoder_forms(s, half=True)
        for d, b in (("race", 128), ("cola", 32)):
            ours = ["projection-bf16", "projection-bf16-wgmma", "projection-bf16-tma"]
            self.on_sequences("bf16", d, b, ours, arrays, self.peers.bf16_forms, "Y", within=0.05)
            self.on_sequences("bf16", d, b, ["encoder-bf16"], layer, forms, "Y", key="encoder", within=0.05)


def dry(r):
    """Reads every artifact: this needs no GPU."""
    files = sorted(HERE.glob("*/*.artifact"))
    wrong = 0
    for start in range(0, len(files), 200):
        some = files[start : start + 200]
        done = subprocess.run([HERE / "cora-exec", *some, "--info"], capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stdout.count(" bytes of code\n") != len(some):
            wrong += 1
            print(done.stderr[-2000:])
    about = json.loads((HERE / "about.json").read_text())
    said = "cannot all be read" if wrong else "are read"
    print(f"{len(files)} artifacts for {about['arch']} {said}; {len(about['skipped'])} were skipped when packed")
    print(f"random programs: {about.get('random') or 'none'}")
    for part in r.args.part or [*CHECKS, *TIMES]:
        print(f"would do {part}: {sum(p == part for p, _ in r.done)} there already")
    return 1 if wrong or not files else 0


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[[], *CHECKS, *TIMES], help="parts; all if none is given")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    parser.add_argument("--minutes", type=float, default=9, help="stop, to be continued, after as many")
    parser.add_argument("--repeat", type=int, default=20, help="runs of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--quick", action="store_true", help="tiny batches, the first case of each part: a trial")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    r = Runner(args)
    if args.dry_run:
        return dry(r)
    timing, parts = None, args.part or [*CHECKS, *TIMES]
    try:
        for part in parts:
            # A check looks at each artifact: another bundle has other ones.
            if part in TIMES and (part, "end") in r.done:
                continue
            before = len(r.failed)
            start = time.monotonic()
            if part in CHECKS:
                if not checks(r, part):
                    continue
            else:
                timing = timing or Timing(r)
                timing.part(part)
            if len(r.failed) == before:
                r.keep(part, "end", ok=True, seconds=round(time.monotonic() - start, 1))
            elif part in CHECKS and not args.part:
                print("what is wrong is not timed")
                break
    except OutOfTime:
        print(f"the time is up in {part}: run again with the same --out to go on")
    right = [x for x in r.lines if x.get("ok")]
    samples, random = (sum(x.get("samples", 0) for x in right if p in ("", x["part"])) for p in ("", "random"))
    kernels = sum(x.get("kernels", 0) for x in right if x["part"] == "random")
    print(f"{samples} samples right, of them {random} of random programs with {kernels} kernels; {len(r.failed)} failed; results in {r.results}")
    return 1 if r.failed else 0


if __name__ == "__main__":
    sys.exit(main())

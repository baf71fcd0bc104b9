#!/usr/bin/env python3
"""Makes what is carried to a machine with an NVIDIA GPU, its driver and Python: one compressed file and `run.sh`.

  scripts/gpu/bundle.py FOLDER [--arch sm_90a] [--kernels 4000] [--batches 170] [--seed 1] [--only NAME,...] [--keep]

In it: `cora-exec`; an artifact of every example under every schedule for GPUs and the compiler's own, with a batch of edge
lengths and the reference interpreter's results; the same with tables that kernels build; random programs with samples; the
programs of the measurements without samples; lengths of the data sets where `--lengths-dir` (`../shared/lengths`) has them, else
made-up ones. Samples have smaller constants than the programs, where these have a model's dimensions (`SMALL`).
`--arch cpu` makes one for processors, as a trial of the scripts where there is no GPU.
`CORA_BIN` is a folder with `cora` and `cora-exec`; without it both are built. `--keep` goes on after an interruption.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# What is timed: a name, the program, its schedule, and more options of `cora compile`.
WORK = [
    ("encoder", "examples/encoder_layer.cora", "cuda", []),
    ("encoder-default", "examples/encoder_layer.cora", "default", []),
    ("encoder-tables", "examples/encoder_layer.cora", "cuda", ["--device-prelude"]),
    ("encoder-no-hoist", "examples/encoder_layer.cora", "cuda", ["--no-hoist-loads"]),
    ("encoder6", "examples/encoder6.cora", "cuda", []),
    ("encoder6-csf", "examples/encoder6.cora", "cuda", ["--csf"]),
    ("encoder-bf16", "examples/encoder_layer_bf16.cora", "cuda", []),
    ("mha", "examples/mha.cora", "cuda", []),
    ("mha-pad-copies", "cora-bench/programs/mha_pad_copies.cora", "cuda", []),
    ("masked-sdpa", "examples/masked_sdpa.cora", "cuda", []),
    ("vgemm", "examples/vgemm.cora", "cuda", []),
    ("trmm-split-balanced", "examples/trmm.cora", "cuda", []),
    ("trmm-split-unbalanced", "examples/trmm.cora", "cuda_split_unbalanced", []),
    ("trmm-unsplit-unbalanced", "examples/trmm.cora", "cuda_unsplit_unbalanced", []),
    ("qkt", "examples/qkt.cora", "cuda", []),
    ("qkt-split-hfused", "examples/qkt.cora", "cuda_split_hfused", []),
    ("qkt-split2-hfused", "examples/qkt.cora", "cuda_split2_hfused", []),
    ("qkt-no-hoist", "examples/qkt.cora", "cuda", ["--no-hoist-loads"]),
    ("attnv", "examples/attnv.cora", "cuda", []),
    ("attnv-split-hfused", "examples/attnv.cora", "cuda_split_hfused", []),
    ("attnv-no-hoist", "examples/attnv.cora", "cuda", ["--no-hoist-loads"]),
    ("layer-norm", "examples/layer_norm.cora", "cuda", []),
    ("tradd", "examples/tradd.cora", "cuda", []),
    ("trmul", "examples/trmul.cora", "cuda", []),
    ("encoder-bf16", "examples/encoder_layer_bf16.cora", "cuda", []),
    ("projection-bf16", "examples/projection_bf16.cora", "cuda", []),
    ("projection-bf16-wgmma", "examples/projection_bf16.cora", "cuda_wgmma", []),
    ("projection-bf16-tma", "examples/projection_bf16.cora", "cuda_tma", []),
    # The other operators of the layer alone: tables of their own.
    ("proj1", "cora-bench/programs/proj1.cora", "default", []),
    ("softmax", "cora-bench/programs/softmax.cora", "default", []),
    ("proj2", "cora-bench/programs/proj2.cora", "default", []),
    ("ff1", "cora-bench/programs/ff1.cora", "default", []),
    ("ff2", "cora-bench/programs/ff2.cora", "default", []),
]
# Programs that are timed with the constant 512 in the place of the lengths too.
DENSE = ["qkt", "attnv", "layer-norm"]
# Lengths where tiles are not whole, and none.
EDGES = [0, 1, 17, 33, 5]
# Constants of samples, where a program has them: the same schedules, and emulations that end.
SMALL = {"H": 2, "DM": 128, "FF": 256, "V": 1000}
DATASETS = {"race": 330, "wiki512": 371, "squad": 192, "wiki128": 116, "mnli": 44, "xnli": 45, "mrpc": 53, "cola": 13}


def say(text):
    print(text, flush=True)


def build(profile):
    bins = os.environ.get("CORA_BIN")
    if bins:
        return Path(bins)
    args = ["cargo", "build", "--quiet", "--profile", {"debug": "dev"}.get(profile, profile)]
    subprocess.run([*args, "--bin", "cora"], cwd=ROOT, check=True)
    subprocess.run([*args, "-p", "cora-runtime", "--bin", "cora-exec"], cwd=ROOT, check=True)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / profile


def schedules(text, kind):
    """The schedules of a program for GPUs or processors, and the compiler's own."""
    return [*re.findall(rf"^schedule ({kind}\w*)", text, re.M), "default"]


def batch(text, folder):
    """Options that give a program a small batch of edge lengths."""
    options, files = [], []
    (folder / "edges.txt").write_text("\n".join(map(str, EDGES)) + "\n")
    nested = "\n".join(map(str, (EDGES * 12)[: sum(EDGES)])) + "\n"
    (folder / "nested.txt").write_text(nested)
    ragged = re.findall(r"(\w+)\((\w+(?:, *\w+)*)\) +in", text)
    for name, args in ragged:
        files.append(f"{name}={folder / ('nested.txt' if ',' in args else 'edges.txt')}")
    for name in re.findall(r"^param (\w+) ", text, re.M):
        options += ["--param", f"{name}={len(EDGES) if ragged else 33}"]
    for name, value in SMALL.items():
        if re.search(rf"^const .*\b{name} = ", text, re.M):
            options += ["--const", f"{name}={value}"]
    return options + [x for f in files for x in ("--lengths", f)]


def run(args, limit):
    try:
        done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        return done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        return None, ""


class Bundle:
    def __init__(self, args, bins, folder):
        self.args, self.cora, self.folder = args, bins / "cora", folder
        self.kind = "cpu" if args.arch == "cpu" else "cuda"
        self.target = "cpu" if args.arch == "cpu" else f"cuda:{args.arch}"
        self.skipped, self.random_programs = [], ""

    def skip(self, what, why):
        self.skipped.append([what, why])
        say(f"SKIP {what}: {why}")

    def compile(self, program, schedule, options, out):
        if out.exists():
            return
        if not (ROOT / program).exists():
            self.skip(out.stem, f"there is no {program}")
            return
        schedule = schedule.replace("cuda", self.kind)
        args = [self.cora, "compile", program, "--target", self.target, "--schedule", schedule, *options]
        code, text = run([*args, "--emit", "artifact", "-o", out], 300)
        if code != 0:
            self.skip(out.stem, text.strip().splitlines()[0] if text.strip() else f"exit code {code}")

    def samples(self, path, schedule, tables):
        folder = self.folder / ("tables" if tables else "samples")
        name = f"{path.stem}-{schedule}"
        if (folder / f"{name}.artifact").exists():
            return
        given = batch(path.read_text(), self.folder / "lengths")
        args = [self.cora, "run", path, "--target", self.target, "--schedule", schedule, *given]
        args += [] if self.kind == "cpu" else ["--emulate"]
        args += ["--device-prelude"] if tables else []
        # The reference and the emulation of the kernels, which finds races, on one batch.
        code, text = run([*args, "--artifact", folder / f"{name}.artifact"], self.args.limit)
        if code is None:
            self.skip(f"{folder.name}/{name}", f"its emulation takes more than {self.args.limit} s")
        elif code != 0 and ("error[E0611]" in text or (tables and "error[E06" in text)):
            # Another architecture's instructions, or tables that kernels cannot build.
            self.skip(f"{folder.name}/{name}", text.strip().splitlines()[0])
        elif code != 0:
            raise SystemExit(f"FAILED {name}: {text}")

    def random(self):
        env = {
            **os.environ,
            "CORA_DEVICE_DIR": str(self.folder / "random"),
            "CORA_DEVICE_ARCH": self.args.arch,
            "CORA_DEVICE_KERNELS": str(self.args.kernels),
            "CORA_DEVICE_BATCHES": str(self.args.batches),
            "CORA_DEVICE_SEED": str(self.args.seed),
        }
        test = os.environ.get("CORA_RANDOM_TEST")
        test = [test] if test else ["cargo", "test", "--quiet", "--test", "end_to_end", "--"]
        args = [*test, "device_artifacts::random_artifacts", "--exact", "--nocapture"]
        done = subprocess.run(args, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"FAILED random programs:\n{done.stdout}{done.stderr}")
        said = next((line for line in done.stdout.splitlines() if "next seed" in line), "")
        say(f"random programs: {said}")
        self.random_programs = said

    def lengths(self):
        folder, given = self.folder / "lengths", self.args.lengths_dir
        made_up = []
        for name, mean in [*DATASETS.items(), ("vgemm_mnk", 0)]:
            file = given / f"{name}.txt"
            if file.exists():
                shutil.copyfile(file, folder / file.name)
                continue
            made_up.append(name)
            rng = random.Random(name)
            if mean:
                most = 128 if name in ("wiki128", "mnli", "xnli", "mrpc", "cola") else 512
                lines = [str(min(most, max(1, round(rng.gauss(mean, mean / 3))))) for _ in range(1024)]
            else:
                lines = [" ".join(str(128 * rng.randint(4, 11)) for _ in range(3)) for _ in range(512)]
            (folder / file.name).write_text("\n".join(lines) + "\n")
        if made_up:
            say(f"made-up lengths, no data set's: {', '.join(made_up)}")
        return made_up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--kernels", type=int, default=4000, help="random kernels, at least; 0 for none")
    parser.add_argument("--batches", type=int, default=170, help="samples of each random program")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first random program")
    parser.add_argument("--lengths-dir", type=Path, default=ROOT.parent / "shared" / "lengths", help="of the data sets")
    parser.add_argument("--limit", type=int, default=300, help="seconds that the emulation of a sample may take")
    parser.add_argument("--keep", action="store_true", help="keep what is unpacked, and do not make again what is there")
    parser.add_argument("--only", help="examples and measurements of these names alone")
    args = parser.parse_args()
    bins = build(os.environ.get("CORA_PROFILE", "release"))
    args.folder.mkdir(parents=True, exist_ok=True)
    folder = args.folder.resolve() / "bundle"
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    for part in ("samples", "tables", "random", "work", "lengths"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    shutil.copy(bins / "cora-exec", folder / "cora-exec")
    if shutil.which("strip"):
        subprocess.run(["strip", folder / "cora-exec"], check=True)
    bundle = Bundle(args, bins, folder)
    about = folder / "about.json"
    if args.keep and about.exists():
        bundle.random_programs = json.loads(about.read_text())["random"]
    wanted = args.only.split(",") if args.only else None
    made_up = bundle.lengths()
    for path in sorted((ROOT / "examples").glob("*.cora")):
        if wanted and path.stem not in wanted:
            continue
        for schedule in schedules(path.read_text(), bundle.kind):
            bundle.samples(path, schedule, False)
            if schedule == "cuda":
                bundle.samples(path, schedule, True)
    for name, program, schedule, options in WORK:
        if wanted and name not in wanted:
            continue
        bundle.compile(program, schedule, options, folder / "work" / f"{name}.artifact")
        if name in DENSE:
            text = (ROOT / program).read_text()
            dense = re.sub(r"^extent lens\(.*\n", "", text, flags=re.M).replace("lens(batch)", "512")
            (folder / "dense.cora").write_text(dense)
            bundle.compile(folder / "dense.cora", schedule, options, folder / "work" / f"{name}-dense.artifact")
            (folder / "dense.cora").unlink()
    if args.kernels and bundle.kind == "cuda" and not any((folder / "random").iterdir()):
        bundle.random()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    said = {"arch": args.arch, "commit": commit.stdout.strip(), "seed": args.seed, "made_up_lengths": made_up}
    said |= {"random": bundle.random_programs, "skipped": bundle.skipped}
    about.write_text(json.dumps(said) + "\n")
    for script in ("run.py", "peers.py", "report.py"):
        shutil.copy(HERE / script, folder / script)
    packed = args.folder / "bundle.tar.xz"
    with tarfile.open(packed, "w:xz", preset=6) as tar:
        tar.add(folder, arcname="bundle")
    counts = ", ".join(f"{len(list((folder / part).iterdir()))} {part}" for part in ("samples", "tables", "random", "work"))
    if not args.keep:
        shutil.rmtree(folder)
    shutil.copy(HERE / "run.sh", args.folder / "run.sh")
    say(f"{packed}: {packed.stat().st_size / 2**20:.1f} MiB; artifacts: {counts}; {len(bundle.skipped)} skipped")


if __name__ == "__main__":
    sys.exit(main())

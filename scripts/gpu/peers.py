#!/usr/bin/env python3
"""PyTorch's and NVIDIA's own libraries on what our programs compute, with the same inputs.

  peers.py --device cpu     every form on tiny inputs, compared with NumPy: a trial of this file

A form is `(name, run, output)`: `run()` is timed, `output()` gives the last result in row-major ragged order. One that is
not there (a library, a kernel for this card) is skipped with a word. What is made before the timing: padded inputs, masks,
offsets, sparse matrices, weights in the layout of `linear`.
"""

import argparse
import ctypes
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

H, D, DM, FF = 8, 64, 512, 2048


class Skip(Exception):
    """This form is not there."""


class Clock:
    """Medians by events of the device, after as many bytes were written elsewhere as flush its caches."""

    def __init__(self, device, flush=256 << 20):
        self.device = device
        self.scratch = torch.empty(flush if device == "cuda" else 1, dtype=torch.uint8, device=device)

    def once(self, run):
        if self.device != "cuda":
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        self.scratch.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b)

    def median(self, run, repeat):
        return statistics.median(self.once(run) for _ in range(repeat))


def ceilings(clock, repeat=20, size=8192):
    """Bytes a second of a copy (read and written), and FLOP/s of a matrix product in each precision, on random data."""
    found = {}
    words = 1 << (28 if clock.device == "cuda" else 16)
    a, b = (torch.randn(words, device=clock.device) for _ in range(2))
    found["copy_gb_s"] = 2 * 4 * words / (clock.median(lambda: b.copy_(a), repeat) * 1e6)
    del a, b
    for name, dtype, tf32 in [
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
    ]:
        precise(tf32)
        x, y = (torch.randn(size, size, device=clock.device, dtype=dtype) for _ in range(2))
        clock.once(lambda: x @ y)
        found[f"{name}_tflops"] = 2 * size**3 / (clock.median(lambda: x @ y, repeat) * 1e9)
    precise(False)
    return found


def precise(tf32=False):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


class Sequences:
    """A batch of sequences on the device: `x[name]` as NumPy arrays in ragged order."""

    def __init__(self, device, lens, arrays):
        self.device, self.lens, self.arrays = device, list(lens), arrays
        self.tokens, self.longest = sum(self.lens), max(self.lens, default=0)
        ends = np.cumsum(self.lens)
        self.offsets = torch.tensor(np.concatenate([[0], ends]), dtype=torch.int32, device=device)
        at = [np.arange(n) + b * self.longest for b, n in enumerate(self.lens)]
        self.places = torch.tensor(np.concatenate(at or [[]]).astype(np.int64), device=device)

    def matrix(self, name, rows, dtype=torch.float32):
        a = np.ascontiguousarray(self.arrays[name].reshape(rows, -1))
        bits = a.dtype == np.uint16
        x = torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if bits else torch.from_numpy(a)
        return x.to(self.device, dtype)

    def weight(self, name, inner, dtype):
        return self.matrix(name, inner, dtype).T.contiguous()

    def pad(self, rows):
        out = rows.new_zeros(len(self.lens) * self.longest, rows.shape[1])
        out[self.places] = rows
        return out.view(len(self.lens), self.longest, -1)

    def unpad(self, padded):
        return padded.reshape(len(self.lens) * self.longest, -1)[self.places]

    def mask(self):
        n = torch.tensor(self.lens, device=self.device)
        return (torch.arange(self.longest, device=self.device) < n[:, None])[:, None, None, :]


class Layer:
    """What comes before and after attention, on rows of tokens in any number of leading dims."""

    def __init__(self, s, dtype):
        self.s, self.dtype = s, dtype
        self.whole = "Wqkv" in s.arrays
        if self.whole:
            v = lambda n: s.matrix(n, 1, dtype)[0]
            self.qkv, self.bqkv, self.o, self.bo = s.weight("Wqkv", DM, dtype), v("Bqkv"), s.weight("Wo", DM, dtype), v("Bo")
            self.w1, self.b1, self.w2, self.b2 = s.weight("W1", DM, dtype), v("B1"), s.weight("W2", FF, dtype), v("B2")
            self.g1, self.e1, self.g2, self.e2 = v("G1"), v("E1"), v("G2"), v("E2")
        self.x = s.matrix("X" if self.whole else "QKV", s.tokens, dtype)

    def before(self, x):
        return F.linear(x, self.qkv, self.bqkv) if self.whole else x

    def after(self, x, o):
        if not self.whole:
            return o
        n = F.layer_norm(x + F.linear(o, self.o, self.bo), (DM,), self.g1, self.e1)
        f = F.linear(F.relu(F.linear(n, self.w1, self.b1)), self.w2, self.b2)
        return F.layer_norm(n + f, (DM,), self.g2, self.e2)


def attend_padded(qkv, mask, causal):
    b, m = qkv.shape[:2]
    q, k, v = qkv.view(b, m, 3, H, D).permute(2, 0, 3, 1, 4)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=None if causal else mask, is_causal=causal)
    return o.transpose(1, 2).reshape(b, m, H * D)


def encoder_forms(s, causal=False, half=False):
    """FT (all padded), FT-Eff (packed linears, padded attention), nested and varlen attention, bf16; `half`: bf16 alone."""

    def padded(dtype):
        one = Layer(s, dtype)
        x, mask = s.pad(one.x), s.mask()
        return lambda: one.after(x, attend_padded(one.before(x), mask, causal)), s.unpad

    def eff(dtype):
        one, mask = Layer(s, dtype), s.mask()
        return lambda: one.after(one.x, s.unpad(attend_padded(s.pad(one.before(one.x)), mask, causal))), lambda y: y

    def nested(dtype):
        if causal or 0 in s.lens:
            raise Skip("nested tensors have no causal attention, and none of empty sequences")
        one, offsets = Layer(s, dtype), s.offsets.long()
        make = lambda t: torch.nested.nested_tensor_from_jagged(
            t, offsets, min_seqlen=min(s.lens), max_seqlen=s.longest
        )

        def run():
            parts = one.before(one.x).view(s.tokens, 3, H, D).unbind(1)
            q, k, v = (make(t.contiguous()).transpose(1, 2) for t in parts)
            o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()
            return one.after(one.x, o.reshape(s.tokens, H * D))

        return run, lambda y: y

    def varlen(dtype):
        if s.device != "cuda":
            raise Skip("attention of variable length is for GPUs")
        one = Layer(s, dtype)
        half = dtype != torch.float32
        flash, efficient = torch.ops.aten._flash_attention_forward, torch.ops.aten._efficient_attention_forward
        if half:
            attend = lambda q, k, v: flash(q, k, v, s.offsets, s.offsets, s.longest, s.longest, 0.0, causal, False)[0]
        else:

            def attend(q, k, v):
                q, k, v = (t.unsqueeze(0) for t in (q, k, v))
                return efficient(
                    q, k, v, None, s.offsets, s.offsets, s.longest, s.longest, 0.0, 1 if causal else 0
                )[0].squeeze(0)

        def run():
            q, k, v = one.before(one.x).view(s.tokens, 3, H, D).unbind(1)
            return one.after(one.x, attend(q, k, v).reshape(s.tokens, H * D))

        return run, lambda y: y

    def each(dtype):
        one, ends = Layer(s, dtype), s.offsets.tolist()

        def run():
            qkv, parts = one.before(one.x), []
            for a, b in zip(ends, ends[1:]):
                if a < b:
                    parts.append(attend_padded(qkv[a:b].unsqueeze(0), None, causal)[0])
            return one.after(one.x, torch.cat(parts))

        return run, lambda y: y

    f, b = torch.float32, torch.bfloat16
    makers = [
        ("torch-padded", padded, f),
        ("ft-eff", eff, f),
        ("torch-nested", nested, f),
        ("torch-varlen", varlen, f),
        ("torch-each", each, f),
        ("torch-bf16-padded", padded, b),
        ("torch-bf16-varlen", varlen, b),
        ("torch-bf16-nested", nested, b),
    ]
    return [form(name, make, dtype) for name, make, dtype in makers if dtype == b or not half]


def form(name, make, *args):
    """A form that keeps its last result; or its name and why it is not there."""
    try:
        run, read = make(*args)
        last = []

        def timed():
            last[:] = [run()]

        timed()
        return name, timed, lambda: read(last[0]).float().cpu().numpy().reshape(-1)
    except (Skip, RuntimeError, NotImplementedError, AttributeError, OSError, TypeError, ValueError) as e:
        return name, None, f"{type(e).__name__}: {e}".splitlines()[0]


def operator_forms(s):
    """The encoder's kernels by the vendor's parts, on packed rows; attention's on padded ones (cuBLAS batched)."""
    f = torch.float32
    one = Layer(s, f)
    n = s.tokens
    # Any values do: these are timed only.
    wide, x = torch.randn(n, FF, device=s.device), one.x
    b, m = len(s.lens), s.longest
    heads = [torch.randn(b, H, m, D, device=s.device) for _ in range(3)]
    scores = torch.randn(b, H, m, m, device=s.device)
    mask = s.mask()
    parts = {
        "QKV": lambda: F.linear(x, one.qkv, one.bqkv),
        "S": lambda: heads[0] @ heads[1].transpose(2, 3),
        "P": lambda: torch.softmax(scores.masked_fill(~mask, float("-inf")), -1),
        "O": lambda: scores @ heads[2],
        "A": lambda: x + F.linear(x, one.o, one.bo),
        "N": lambda: F.layer_norm(x, (DM,), one.g1, one.e1),
        "F": lambda: F.relu(F.linear(x, one.w1, one.b1)),
        "R": lambda: x + F.linear(wide, one.w2, one.b2),
        "Y": lambda: F.layer_norm(x, (DM,), one.g2, one.e2),
    }
    return [form(name, lambda run=run: (run, lambda y: y)) for name, run in parts.items()]


def product_forms(device, sizes, arrays):
    """Products of different sizes: one matmul each on the exact shapes, and all padded in one batch."""
    xs, ys, at, bt = [], [], 0, 0
    for m, n, k in sizes:
        xs.append(torch.from_numpy(arrays["X"][at : at + m * k].reshape(m, k)).to(device))
        ys.append(torch.from_numpy(arrays["Y"][bt : bt + k * n].reshape(k, n)).to(device))
        at, bt = at + m * k, bt + k * n

    def looped():
        out = [torch.empty(m, n, device=device) for m, n, _ in sizes]

        def run():
            for x, y, o in zip(xs, ys, out):
                torch.mm(x, y, out=o)
            return out

        return run, lambda all_: torch.cat([o.reshape(-1) for o in all_])

    def padded():
        m, n, k = (max(s[i] for s in sizes) for i in range(3))
        a, b = torch.zeros(len(sizes), m, k, device=device), torch.zeros(len(sizes), k, n, device=device)
        for i, (x, y) in enumerate(zip(xs, ys)):
            a[i, : x.shape[0], : x.shape[1]], b[i, : y.shape[0], : y.shape[1]] = x, y
        cut = lambda c: torch.cat([c[i, :p, :q].reshape(-1) for i, (p, q, _) in enumerate(sizes)])
        return lambda: torch.bmm(a, b), cut

    return [form("cublas-loop", looped), form("cublas-padded", padded)]


def triangle(flat, n):
    full = np.zeros((n, n), np.float32)
    full[np.tril_indices(n)] = flat
    return full


def strmm(device, lower, x):
    """`cublasStrmm` out of place, as C = X^T L^T in the column-major view: a right-hand upper triangle."""
    if device != "cuda":
        raise Skip("cuBLAS is for GPUs")
    blas = None
    for name in ("libcublas.so.13", "libcublas.so.12", "libcublas.so"):
        try:
            blas = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if blas is None:
        raise Skip("libcublas is not found")
    handle, n, one = ctypes.c_void_p(), x.shape[0], ctypes.c_float(1.0)
    if blas.cublasCreate_v2(ctypes.byref(handle)) != 0:
        raise Skip("cublasCreate fails")
    blas.cublasSetStream_v2(handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    out = torch.empty_like(x)
    p = lambda t: ctypes.c_void_p(t.data_ptr())

    def run():
        # side right, fill upper (the row-major lower), no transpose, no unit diagonal.
        code = blas.cublasStrmm_v2(
            handle, 1, 1, 0, 0, x.shape[1], n, ctypes.byref(one), p(lower), n, p(x), x.shape[1], p(out), x.shape[1]
        )
        if code != 0:
            raise RuntimeError(f"cublasStrmm: {code}")
        return out

    return run, lambda y: y


def trmm_forms(device, n, arrays):
    full = torch.from_numpy(triangle(arrays["L"], n)).to(device)
    x = torch.from_numpy(arrays["X"].reshape(n, n)).to(device)
    csr = lambda: (lambda m: (lambda: m @ x, lambda y: y))(full.to_sparse_csr())
    forms = [form("cublas-trmm", lambda: strmm(device, full, x)), form("cublas-gemm", lambda: (lambda: full @ x, lambda y: y))]
    return forms + ([form("cusparse-csr", csr)] if n <= 2048 else [])


def elementwise_forms(device, workload, n, arrays):
    a, b = (torch.from_numpy(triangle(arrays[k], n)).to(device) for k in "XY")
    op = torch.add if workload == "tradd" else torch.mul
    rows, cols = (torch.from_numpy(i).to(device) for i in np.tril_indices(n))
    flat = [t[rows, cols].contiguous() for t in (a, b)]

    def csr():
        x, y = a.to_sparse_csr(), b.to_sparse_csr()
        return lambda: op(x, y), lambda z: z.to_dense()[rows, cols]

    return [form("csr", csr), form("flat", lambda: (lambda: op(*flat), lambda z: z))]


def bf16_forms(s):
    """A linear layer on packed rows in bfloat16 (cuBLAS), on the bits of our program's inputs."""
    x, w = s.matrix("X", s.tokens, torch.bfloat16), s.matrix("W", DM, torch.bfloat16)
    bias = torch.from_numpy(s.arrays["B"]).to(s.device, torch.bfloat16)
    return [form("cublas-bf16", lambda: (lambda: torch.addmm(bias, x, w), lambda y: y))]


def encoder_arrays(lens, rng):
    n = lambda *shape: rng.standard_normal(int(np.prod(shape)), dtype=np.float32)
    scaled = {"Wqkv": (DM, 3 * DM), "Wo": (DM, DM), "W1": (DM, FF), "W2": (FF, DM)}
    out = {"X": n(sum(lens), DM), **{k: n(*v) / np.float32(np.sqrt(v[0])) for k, v in scaled.items()}}
    sizes = {"Bqkv": 3 * DM, "Bo": DM, "G1": DM, "E1": DM, "B1": FF, "B2": DM, "G2": DM, "E2": DM}
    return {**out, **{k: n(v) for k, v in sizes.items()}}


def floats(array):
    """Elements as fp32; bf16 comes as its bits."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


def difference(got, want):
    """Relative to the greatest value; infinite where one is not a number or is missing."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max(initial=0) / max(np.abs(want).max(initial=0), 1e-30))


def trial(device):
    """Every form on tiny inputs against the first that is there, or NumPy. Gives what is wrong."""
    rng, clock, wrong = np.random.default_rng(0), Clock(device, 1 << 20), []

    def look(what, forms, want=None):
        for name, run, out in forms:
            if run is None:
                print(f"SKIP {what} {name}: {out}")
                continue
            ms, got = clock.median(run, 3), out()
            want = got if want is None else want
            off = difference(got, want)
            print(f"{what} {name}: {ms:.3f} ms, difference {off:.1e}")
            if off > (0.05 if "bf16" in name else 1e-4):
                wrong.append(f"{what} {name}")

    lens = [3, 7, 1, 12]
    s = Sequences(device, lens, encoder_arrays(lens, rng))
    look("encoder", encoder_forms(s))
    for name, run, out in operator_forms(s):
        look("operator", [(name, run, out)])
    qkv = Sequences(device, lens, {"QKV": rng.standard_normal(sum(lens) * 3 * DM, dtype=np.float32)})
    look("masked-sdpa", encoder_forms(qkv, causal=True))
    sizes = [(4, 5, 6), (7, 3, 2)]
    x, y = ([rng.standard_normal(shape, dtype=np.float32) for shape in all_] for all_ in zip(*[((m, k), (k, n)) for m, n, k in sizes]))
    flat = {"X": np.concatenate([a.ravel() for a in x]), "Y": np.concatenate([a.ravel() for a in y])}
    look("vgemm", product_forms(device, sizes, flat), np.concatenate([(a @ b).ravel() for a, b in zip(x, y)]))
    n = 33
    low, full = (rng.standard_normal(k, dtype=np.float32) for k in (n * (n + 1) // 2, n * n))
    look("trmm", trmm_forms(device, n, {"L": low, "X": full}), (triangle(low, n) @ full.reshape(n, n)).ravel())
    for w, op in (("tradd", np.add), ("trmul", np.multiply)):
        look(w, elementwise_forms(device, w, n, {"X": low, "Y": low[::-1].copy()}), op(low, low[::-1]))
    half = lambda x: (x.view(np.uint32) >> 16).astype(np.uint16)
    layer = {k: half(x) if k[0] in "XW" else x for k, x in encoder_arrays(lens, rng).items()}
    look("encoder bf16", encoder_forms(Sequences(device, lens, layer), half=True))
    random = lambda k: rng.standard_normal(k, dtype=np.float32)
    b = {"X": half(random(sum(lens) * DM)), "W": half(random(DM * DM)), "B": random(DM)}
    want = floats(b["X"]).reshape(-1, DM) @ floats(b["W"]).reshape(DM, DM) + b["B"]
    look("bf16", bf16_forms(Sequences(device, lens, b)), want.ravel())
    print(ceilings(clock, 3, 8192 if device == "cuda" else 128))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    precise()
    wrong = trial(args.device)
    for what in wrong:
        print(f"MISMATCH {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

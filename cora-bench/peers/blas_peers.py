"""MKL and OpenBLAS through their C interface: batches of products of different sizes, and triangular products."""

import ctypes
import glob
import os
import sys

import numpy as np
from common import Run, Skip

ROW, PLAIN, LEFT, LOWER, NON_UNIT = 101, 111, 141, 122, 131
FLOATS = ctypes.POINTER(ctypes.c_float)


def build(peer, case):
    library, form = peer.split("-", 1)
    blas = Mkl(case.threads) if library == "mkl" else OpenBlas(case.threads)
    forms = {
        ("vgemm", "batch"): batch,
        ("vgemm", "padded"): padded,
        ("vgemm", "loop"): loop,
        ("trmm", "trmm"): trmm,
        ("trmm", "gemm"): dense,
    }
    if (case.workload, form) not in forms or (library == "openblas" and form in ("batch", "padded")):
        raise Skip(f"no form `{form}` of {case.workload}")
    return forms[case.workload, form](blas, case)


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class Mkl:
    def __init__(self, threads):
        found = glob.glob(os.path.join(sys.prefix, "lib", "libmkl_rt.so*"))
        if not found:
            raise Skip("not installed (no libmkl_rt)")
        os.environ["MKL_THREADING_LAYER"] = "INTEL"
        self.lib = ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)
        self.lib.MKL_Set_Num_Threads(threads)
        self.sgemm, self.strmm = self.lib.cblas_sgemm, self.lib.cblas_strmm


class OpenBlas:
    def __init__(self, threads):
        import scipy_openblas32

        self.lib = ctypes.CDLL(os.path.join(scipy_openblas32.get_lib_dir(), "libscipy_openblas.so"))
        self.lib.scipy_openblas_set_num_threads(threads)
        self.sgemm, self.strmm = self.lib.scipy_cblas_sgemm, self.lib.scipy_cblas_strmm


def gemm(blas, m, n, k, a, b, c):
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    blas.sgemm(ROW, PLAIN, PLAIN, m, n, k, one, pointer(a), k, pointer(b), n, zero, pointer(c), n)


def products(case):
    """Views of the inputs and new outputs: (m, n, k, A, B, C) of each product."""
    x, y, all_, at = case.array("X", -1), case.array("Y", -1), [], [0, 0, 0]
    out = np.zeros(sum(m * n for m, n, _ in case.products), np.float32)
    for m, n, k in case.products:
        a, b, c = (v[o:] for v, o in zip((x, y, out), at))
        all_.append((m, n, k, a, b, c))
        at = [at[0] + m * k, at[1] + k * n, at[2] + m * n]
    return all_, out


def batch(blas, case):
    """One group for each matrix: the call for products of different sizes."""
    all_, out = products(case)
    count = len(all_)
    ints = lambda values: (ctypes.c_int * count)(*values)
    floats = lambda value: (ctypes.c_float * count)(*[value] * count)
    pointers = lambda arrays: (ctypes.c_void_p * count)(*[a.ctypes.data for a in arrays])
    ms, ns, ks = (ints([p[d] for p in all_]) for d in range(3))
    plain, ones = ints([PLAIN] * count), ints([1] * count)
    a, b, c = (pointers([p[d] for p in all_]) for d in (3, 4, 5))
    one, zero = floats(1), floats(0)

    def run():
        blas.lib.cblas_sgemm_batch(ROW, plain, plain, ms, ns, ks, one, a, ks, b, ns, zero, c, ns, count, ones)

    # The inputs must live as long as the pointers to them.
    run.inputs = all_
    return Run(run, lambda: out, detail="sgemm_batch, one group for each matrix")


def padded(blas, case):
    """One group, every matrix padded with zeros to the batch's greatest sizes."""
    all_, _ = products(case)
    count = len(all_)
    m, n, k = (max(p[d] for p in all_) for d in range(3))
    a, b = np.zeros((count, m, k), np.float32), np.zeros((count, k, n), np.float32)
    c = np.zeros((count, m, n), np.float32)
    for i, (pm, pn, pk, x, y, _) in enumerate(all_):
        a[i, :pm, :pk] = x[: pm * pk].reshape(pm, pk)
        b[i, :pk, :pn] = y[: pk * pn].reshape(pk, pn)
    del all_
    pointers = lambda array: (ctypes.c_void_p * count)(*[x.ctypes.data for x in array])
    pa, pb, pc = pointers(a), pointers(b), pointers(c)
    of = lambda v: ctypes.byref(ctypes.c_int(v))
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))

    def run():
        blas.lib.cblas_sgemm_batch(
            ROW, of(PLAIN), of(PLAIN), of(m), of(n), of(k), one, pa, of(k), pb, of(n), zero, pc, of(n), 1, of(count)
        )

    def output():
        # `a` and `b` are named so that they live as long as the pointers to them.
        assert len(a) == len(b) == count
        return np.concatenate([c[i, :pm, :pn].reshape(-1) for i, (pm, pn, _) in enumerate(case.products)])

    work = count * m * n * k / sum(pm * pn * pk for pm, pn, pk in case.products)
    return Run(run, output, detail=f"sgemm_batch, one group, {work:.3f} times the work")


def loop(blas, case):
    all_, out = products(case)

    def run():
        for p in all_:
            gemm(blas, *p)

    return Run(run, lambda: out, detail="one sgemm after the other")


def triangle(case):
    full = np.zeros((case.size, case.size), np.float32)
    full[np.tril_indices(case.size)] = case.x["L"].reshape(-1)
    return full


def trmm(blas, case):
    n, full, x = case.size, triangle(case), case.array("X", case.size, case.size)
    out = np.empty_like(x)
    one = ctypes.c_float(1)

    def run():
        blas.strmm(ROW, LEFT, LOWER, PLAIN, NON_UNIT, n, n, one, pointer(full), n, pointer(out), n)

    # It works in place, so each run gets a fresh right-hand side, which is not timed.
    return Run(run, lambda: out, prepare=lambda: np.copyto(out, x), detail="strmm, in place; the copy is not timed")


def dense(blas, case):
    n, full, x = case.size, triangle(case), case.array("X", case.size, case.size)
    out = np.empty_like(x)
    return Run(lambda: gemm(blas, n, n, n, full, x, out), lambda: out, detail="sgemm on the full matrix")

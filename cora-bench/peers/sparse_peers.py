"""Sparse libraries and compilers on lower-triangular matrices: SciPy's CSR, MLIR's sparsifier with CSR and BSR of 32."""

import ctypes
import os
import shutil
import subprocess

import numpy as np
from common import Run, Skip

BLOCK = 32


def build(peer, case):
    if case.workload not in ("trmm", "tradd", "trmul"):
        raise Skip(f"no form of {case.workload}")
    if peer == "scipy-csr":
        return scipy_csr(case)
    if case.size % BLOCK and peer == "mlir-bsr":
        raise Skip(f"the size is no multiple of {BLOCK}")
    return sparsifier(case, Csr(case.size) if peer == "mlir-csr" else Bsr(case.size))


class Csr:
    """The stored triangle is CSR already: row i has the columns 0 to i."""

    levels = "i : dense, j : compressed"

    def __init__(self, n):
        self.positions = np.concatenate([[0], np.cumsum(np.arange(1, n + 1))]).astype(np.int64)
        self.columns = np.concatenate([np.arange(i + 1) for i in range(n)]).astype(np.int64)

    def values(self, triangle):
        return np.array(triangle, np.float32)

    def triangle(self, values):
        return values


class Bsr:
    """Blocks on and below the diagonal; those on it hold zeros above."""

    levels = (
        f"i floordiv {BLOCK} : dense, j floordiv {BLOCK} : compressed, i mod {BLOCK} : dense, j mod {BLOCK} : dense"
    )

    def __init__(self, n):
        blocks = Csr(n // BLOCK)
        self.n, self.positions, self.columns = n, blocks.positions, blocks.columns
        rows = np.repeat(np.arange(n // BLOCK), np.diff(blocks.positions))
        self.where = (rows, blocks.columns)

    def blocked(self, full):
        return full.reshape(self.n // BLOCK, BLOCK, self.n // BLOCK, BLOCK).swapaxes(1, 2)

    def values(self, triangle):
        full = np.zeros((self.n, self.n), np.float32)
        full[np.tril_indices(self.n)] = triangle
        return np.ascontiguousarray(self.blocked(full)[self.where]).reshape(-1)

    def triangle(self, values):
        full = np.zeros((self.n, self.n), np.float32)
        self.blocked(full)[self.where] = values.reshape(-1, BLOCK, BLOCK)
        return full[np.tril_indices(self.n)]


def scipy_csr(case):
    import scipy.sparse as sp

    form = Csr(case.size)

    def matrix(name):
        index = form.columns.astype(np.int32), form.positions.astype(np.int32)
        return sp.csr_array((case.array(name, -1), *index), shape=(case.size, case.size))

    last = []
    if case.workload == "trmm":
        a, x = matrix("L"), case.array("X", case.size, case.size)
        operation, result = lambda: a @ x, lambda: last[0]
    else:
        a, b = matrix("X"), matrix("Y")
        operation = (lambda: a + b) if case.workload == "tradd" else (lambda: a.multiply(b))
        result = lambda: last[0].tocsr().data

    def run():
        last[:] = [operation()]

    return Run(run, result, detail="one thread")


PRODUCT = """
#S = #sparse_tensor.encoding<{{ map = (i, j) -> ({levels}) }}>
#product = {{ indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
  affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"] }}
func.func @kernel(%p: tensor<?xindex>, %c: tensor<?xindex>, %v: tensor<?xf32>, %x: tensor<{n}x{n}xf32>,
    %out: tensor<{n}x{n}xf32> {{bufferization.writable = true}}) -> tensor<{n}x{n}xf32>
    attributes {{llvm.emit_c_interface}} {{
  %a = sparse_tensor.assemble (%p, %c), %v
    : (tensor<?xindex>, tensor<?xindex>), tensor<?xf32> to tensor<{n}x{n}xf32, #S>
  %r = linalg.generic #product ins(%a, %x : tensor<{n}x{n}xf32, #S>, tensor<{n}x{n}xf32>)
      outs(%out : tensor<{n}x{n}xf32>) {{
  ^bb0(%l: f32, %q: f32, %s: f32):
    %m = arith.mulf %l, %q : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  }} -> tensor<{n}x{n}xf32>
  return %r : tensor<{n}x{n}xf32>
}}
"""

ELEMENTWISE = """
#S = #sparse_tensor.encoding<{{ map = (i, j) -> ({levels}) }}>
#each = {{ indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
  iterator_types = ["parallel", "parallel"] }}
func.func @kernel(%p: tensor<?xindex>, %c: tensor<?xindex>, %av: tensor<?xf32>, %bv: tensor<?xf32>)
    -> (memref<?xindex>, memref<?xindex>, memref<?xf32>) attributes {{llvm.emit_c_interface}} {{
  %a = sparse_tensor.assemble (%p, %c), %av
    : (tensor<?xindex>, tensor<?xindex>), tensor<?xf32> to tensor<{n}x{n}xf32, #S>
  %b = sparse_tensor.assemble (%p, %c), %bv
    : (tensor<?xindex>, tensor<?xindex>), tensor<?xf32> to tensor<{n}x{n}xf32, #S>
  %e = tensor.empty() : tensor<{n}x{n}xf32, #S>
  %r = linalg.generic #each ins(%a, %b : tensor<{n}x{n}xf32, #S>, tensor<{n}x{n}xf32, #S>)
      outs(%e : tensor<{n}x{n}xf32, #S>) {{
  ^bb0(%l: f32, %r: f32, %s: f32):
    %t = arith.{op} %l, %r : f32
    linalg.yield %t : f32
  }} -> tensor<{n}x{n}xf32, #S>
  %rp = sparse_tensor.positions %r {{level = 1 : index}} : tensor<{n}x{n}xf32, #S> to memref<?xindex>
  %rc = sparse_tensor.coordinates %r {{level = 1 : index}} : tensor<{n}x{n}xf32, #S> to memref<?xindex>
  %rv = sparse_tensor.values %r : tensor<{n}x{n}xf32, #S> to memref<?xf32>
  return %rp, %rc, %rv : memref<?xindex>, memref<?xindex>, memref<?xf32>
}}
"""


def compiled(case, text):
    """The kernel's C entry, through MLIR's standard pipeline for sparse tensors and clang."""
    base = os.path.join(case.folder, f"sparse-{os.getpid()}")
    with open(base + ".mlir", "w") as f:
        f.write(text)
    tools = [next(filter(None, map(shutil.which, (t + "-22", t))), None) for t in ("mlir-opt", "mlir-translate", "clang")]
    if None in tools:
        raise Skip("not installed (mlir-opt, mlir-translate and clang of LLVM 22)")
    options = "enable-runtime-library=false enable-index-optimizations reassociate-fp-reductions vl=16"
    steps = [
        [tools[0], f"--sparsifier={options}", base + ".mlir", "-o", base + ".low.mlir"],
        [tools[1], "--mlir-to-llvmir", base + ".low.mlir", "-o", base + ".ll"],
        [tools[2], "-O3", "-march=native", "-shared", "-fPIC", "-Wno-override-module", base + ".ll", "-o", base + ".so"],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{os.path.basename(step[0])}: {done.stderr[:300]}")
    return ctypes.CDLL(base + ".so")._mlir_ciface_kernel


def memref(array=None, rank=1):
    """MLIR's descriptor: allocated, aligned, offset, sizes, strides."""
    if array is None:
        return (ctypes.c_int64 * (3 + 2 * rank))()
    data = array.ctypes.data
    strides = [s // array.itemsize for s in array.strides]
    return (ctypes.c_int64 * (3 + 2 * array.ndim))(data, data, 0, *array.shape, *strides)


def contents(descriptor, dtype):
    length = descriptor[3]
    items = (ctypes.c_char * (length * np.dtype(dtype).itemsize)).from_address(descriptor[1])
    return np.frombuffer(items, dtype)


def sparsifier(case, form):
    n = case.size
    index = [memref(form.positions), memref(form.columns)]
    if case.workload == "trmm":
        kernel = compiled(case, PRODUCT.format(levels=form.levels, n=n))
        values, x, out = form.values(case.x["L"]), case.array("X", n, n), np.empty((n, n), np.float32)
        result = memref(rank=2)
        arguments = [result, *index, memref(values), memref(x), memref(out)]
        kept = (form, values, x)

        def product():
            assert len(kept) == 3
            kernel(*arguments)

        return Run(product, lambda: out, lambda: out.fill(0), "one thread; zeros for the result are not timed")
    kernel = compiled(case, ELEMENTWISE.format(levels=form.levels, n=n, op="addf" if case.workload == "tradd" else "mulf"))
    a, b = form.values(case.x["X"]), form.values(case.x["Y"])
    result = (ctypes.c_int64 * 15)()
    arguments = [result, *index, memref(a), memref(b)]
    free = ctypes.CDLL(None).free

    def prepare():
        # The last result, which the kernel allocated.
        for n in range(0, 15, 5):
            free(ctypes.c_void_p(result[n]))
            result[n] = 0

    def each():
        assert len(a) == len(b)
        kernel(*arguments)

    return Run(each, lambda: form.triangle(contents(result[10:15], np.float32)), prepare, "one thread")

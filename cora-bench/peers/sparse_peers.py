"""Sparse compilers and libraries on lower-triangular matrices: SciPy's CSR, MLIR's sparsifier with CSR and BSR."""

import numpy as np
from common import Run, Skip


def build(peer, case):
    if case.workload not in ("trmm", "tradd", "trmul"):
        raise Skip(f"no form of {case.workload}")
    if peer == "scipy-csr":
        return scipy_csr(case)
    raise Skip(f"no form `{peer}` of {case.workload}")


def csr(case, name):
    """The stored triangle is CSR already: row i has the columns 0 to i."""
    n = case.size
    positions = np.concatenate([[0], np.cumsum(np.arange(1, n + 1))]).astype(np.int64)
    columns = np.concatenate([np.arange(i + 1) for i in range(n)]).astype(np.int64)
    return positions, columns, case.array(name, -1)


def scipy_csr(case):
    import scipy.sparse as sp

    def matrix(name):
        positions, columns, values = csr(case, name)
        return sp.csr_array((values, columns.astype(np.int32), positions.astype(np.int32)), shape=(case.size, case.size))

    last = []
    if case.workload == "trmm":
        a, x = matrix("L"), case.array("X", case.size, case.size)
        operation, result = lambda: a @ x, lambda: last[0]
    else:
        a, b = matrix("X"), matrix("Y")
        operation = (lambda: a + b) if case.workload == "tradd" else (lambda: a.multiply(b))
        result = lambda: last[0].toarray()[np.tril_indices(case.size)]

    def run():
        last[:] = [operation()]

    return Run(run, result, detail="one thread")

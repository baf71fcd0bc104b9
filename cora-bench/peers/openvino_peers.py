"""OpenVINO's CPU plugin with the f32 precision hint: layers padded with a mask, and matrix products on packed rows."""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from common import Run, Skip, pad_rows, unpad_rows

H, D = 8, 64


def build(peer, case):
    if peer == "openvino" and case.workload in ("encoder", "mha"):
        return layer(case)
    if peer == "openvino" and case.workload in ("proj1", "proj2", "ff1", "ff2"):
        return linear(case)
    raise Skip(f"no form of {case.workload}")


def compiled(case, results, parameters):
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": case.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    return ov.Core().compile_model(ov.Model(results, parameters), "CPU", config).create_infer_request()


def bound(request, inputs, output, detail):
    # A tensor that shares an array's memory does not keep the array, so this list does, as long as `run` lives.
    shared = [(array, ov.Tensor(array, shared_memory=True)) for array in map(np.ascontiguousarray, inputs)]
    for n, (_, tensor) in enumerate(shared):
        request.set_input_tensor(n, tensor)

    def run():
        assert len(shared) == len(inputs)
        request.infer()

    return Run(run, lambda: output(request.get_output_tensor(0).data), detail=detail)


def matmul(x, w):
    return ops.matmul(x, ops.constant(w), False, False)


def norm(x, gamma, beta):
    y = ops.mvn(x, ops.constant(np.array([-1], np.int64)), True, 1e-5, "inside_sqrt")
    return ops.add(ops.multiply(y, ops.constant(gamma)), ops.constant(beta))


def layer(case):
    b, m = len(case.lens), case.longest
    w = {n: case.array(n, s, -1) for n, s in (("Wqkv", 512), ("Wo", 512), ("W1", 512), ("W2", 2048)) if n in case.x}
    v = {n: case.array(n, -1) for n in ("Bqkv", "Bo", "B1", "B2", "G1", "E1", "G2", "E2") if n in case.x}
    const = lambda values: ops.constant(np.array(values, np.int64))
    x = ops.parameter([b, m, 512], np.float32)
    mask = ops.parameter([b, 1, 1, m], np.float32)
    qkv = ops.add(matmul(x, w["Wqkv"]), ops.constant(v["Bqkv"]))
    qkv = ops.transpose(ops.reshape(qkv, const([b, m, 3, H, D]), False), const([2, 0, 3, 1, 4]))
    q, k, values = (ops.gather(qkv, const(n), const(0)) for n in range(3))
    o = ops.scaled_dot_product_attention(q, k, values, mask)
    o = ops.reshape(ops.transpose(o, const([0, 2, 1, 3])), const([b, m, H * D]), False)
    y = ops.add(matmul(o, w["Wo"]), ops.constant(v["Bo"]))
    if case.workload == "encoder":
        n = norm(ops.add(x, y), v["G1"], v["E1"])
        f = ops.relu(ops.add(matmul(n, w["W1"]), ops.constant(v["B1"])))
        f = ops.add(matmul(f, w["W2"]), ops.constant(v["B2"]))
        y = norm(ops.add(n, f), v["G2"], v["E2"])
    valid = np.arange(m) < np.array(case.lens)[:, None]
    inputs = [
        pad_rows(case.rows("X"), case.lens, m),
        np.where(valid, 0.0, -1e30).astype(np.float32)[:, None, None, :],
    ]
    request = compiled(case, [y], [x, mask])
    return bound(request, inputs, lambda y: unpad_rows(y, case.lens), "padded, with a mask of lengths")


def linear(case):
    rows = case.rows("X")
    x = ops.parameter(list(rows.shape), np.float32)
    y = ops.add(matmul(x, case.array("W", rows.shape[1], -1)), ops.constant(case.array("Bias", -1)))
    parameters, inputs = [x], [rows]
    if case.workload == "ff1":
        y = ops.relu(y)
    if "Res" in case.x:
        residual = case.rows("Res")
        r = ops.parameter(list(residual.shape), np.float32)
        y, parameters, inputs = ops.add(y, r), [x, r], [rows, residual]
    return bound(compiled(case, [y], parameters), inputs, np.array, "matmul on packed rows")

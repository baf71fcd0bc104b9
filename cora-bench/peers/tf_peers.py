"""TensorFlow on the CPU: MHA padded with a mask, and in sorted micro-batches."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import numpy as np
import tensorflow as tf
from common import MicroBatches, Run, Skip, best_micro_batch, pad_rows, unpad_rows

H, D = 8, 64


def build(peer, case):
    if case.workload != "mha":
        raise Skip(f"no form of {case.workload}")
    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if peer == "tf-padded":
        return padded(case)
    if peer == "tf-micro":
        return best_micro_batch(case, lambda size: micro(case, size))
    raise Skip(f"no form `{peer}` of {case.workload}")


def layer(case):
    w, b = tf.constant(case.array("Wqkv", 512, -1)), tf.constant(case.array("Bqkv", -1))
    wo, bo = tf.constant(case.array("Wo", 512, -1)), tf.constant(case.array("Bo", -1))

    @tf.function
    def mha(x, mask):
        batch, m = x.shape[0], x.shape[1]
        rows = tf.reshape(x, [batch * m, 512])
        qkv = tf.transpose(tf.reshape(tf.matmul(rows, w) + b, [batch, m, 3, H, D]), [2, 0, 3, 1, 4])
        p = tf.nn.softmax(0.125 * tf.matmul(qkv[0], qkv[1], transpose_b=True) + mask)
        o = tf.reshape(tf.transpose(tf.matmul(p, qkv[2]), [0, 2, 1, 3]), [batch * m, H * D])
        return tf.reshape(tf.matmul(o, wo) + bo, [batch, m, 512])

    return mha


def mask(lens, longest):
    valid = np.arange(longest) < np.array(lens)[:, None]
    return tf.constant(np.where(valid, 0.0, -1e30).astype(np.float32)[:, None, None, :])


def padded(case):
    mha, x = layer(case), tf.constant(pad_rows(case.rows("X"), case.lens, case.longest))
    m, last = mask(case.lens, case.longest), []

    def run():
        last[:] = [mha(x, m).numpy()]

    return Run(run, lambda: unpad_rows(last[0], case.lens), detail="a mask of lengths")


def micro(case, size):
    mha, parts = layer(case), MicroBatches(case, size)
    rows, work = case.rows("X"), []
    for part in parts.parts:
        lens = parts.lens(part)
        work.append((tf.constant(parts.padded(rows, part)), mask(lens, max(lens))))
    last = []

    def run():
        last[:] = [mha(x, m).numpy() for x, m in work]

    return Run(run, lambda: parts.gather(last))

"""PyTorch on the CPU: padded with a mask, sorted micro-batches, packed, nested (jagged), compiled, bf16."""

import numpy as np
import torch
import torch.nn.functional as F
from common import MicroBatches, Run, Skip, best_micro_batch, pad_rows, unpad_rows

H, D = 8, 64


def build(peer, case):
    torch.set_num_threads(case.threads)
    torch.set_grad_enabled(False)
    form = peer.removeprefix("torch-")
    if case.workload in ("encoder", "mha", "sdpa", "masked-sdpa"):
        return layer(form, case)
    if case.workload in OPERATORS and form == "packed":
        return OPERATORS[case.workload](case)
    if case.workload in ("tradd", "trmul") and form == "flat":
        return flat(case)
    raise Skip(f"no form `{form}` of {case.workload}")


class Weights:
    """The program's weights, as `linear` wants them: (out, in)."""

    def __init__(self, case, dtype):
        def matrix(name, inner):
            w = case.array(name, inner, -1).T
            return torch.from_numpy(np.ascontiguousarray(w)).to(dtype)

        def vector(name):
            return torch.from_numpy(case.array(name, -1)).to(dtype)

        x = case.x
        if "Wqkv" in x:
            self.qkv, self.bqkv = matrix("Wqkv", 512), vector("Bqkv")
            self.o, self.bo = matrix("Wo", 512), vector("Bo")
        if "W1" in x:
            self.w1, self.b1, self.w2, self.b2 = matrix("W1", 512), vector("B1"), matrix("W2", 2048), vector("B2")
            self.g1, self.e1, self.g2, self.e2 = (vector(n) for n in ("G1", "E1", "G2", "E2"))


class Layer:
    """The workload before and after attention, on rows of tokens in any number of leading dims."""

    def __init__(self, case, dtype=torch.float32):
        self.w = Weights(case, dtype)
        self.kind = case.workload
        self.causal = case.workload == "masked-sdpa"
        self.input = "X" if "X" in case.x else "QKV"

    def before(self, x):
        return x if self.input == "QKV" else F.linear(x, self.w.qkv, self.w.bqkv)

    def after(self, x, o):
        w = self.w
        if self.input == "QKV":
            return o
        y = F.linear(o, w.o, w.bo)
        if self.kind == "mha":
            return y
        n = F.layer_norm(x + y, (512,), w.g1, w.e1)
        f = F.linear(F.relu(F.linear(n, w.w1, w.b1)), w.w2, w.b2)
        return F.layer_norm(n + f, (512,), w.g2, w.e2)

    def padded(self, x, mask):
        """x: (batch, rows, n); mask: (batch, 1, 1, rows), or nothing where no row is padding."""
        b, m = x.shape[:2]
        q, k, v = self.before(x).view(b, m, 3, H, D).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.after(x, o.transpose(1, 2).reshape(b, m, H * D))

    def attend_each(self, qkv, offsets):
        """SDPA of one sequence after the other on packed rows."""
        out = torch.empty(qkv.shape[0], H, D, dtype=qkv.dtype)
        for a, b in zip(offsets, offsets[1:]):
            if a < b:
                q, k, v = qkv[a:b].view(1, b - a, 3, H, D).permute(2, 0, 3, 1, 4)
                out[a:b] = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)[0].transpose(0, 1)
        return out.view(-1, H * D)


def length_mask(layer, lens, longest):
    # A causal row of real data sees real data only, so the causal form needs no mask of lengths.
    if layer.causal or all(n == longest for n in lens):
        return None
    return (torch.arange(longest) < torch.tensor(lens)[:, None])[:, None, None, :]


def layer(form, case):
    forms = {
        "padded": padded,
        "micro": lambda case: best_micro_batch(case, lambda size: micro(case, size)),
        "packed": packed,
        "nested": nested,
        "compile": lambda case: packed(case, compiled=True),
        "bf16": lambda case: packed(case, torch.bfloat16),
    }
    if form not in forms:
        raise Skip(f"no form `{form}` of {case.workload}")
    return forms[form](case)


def padded(case):
    one = Layer(case)
    x = torch.from_numpy(pad_rows(case.rows(one.input), case.lens, case.longest))
    mask = length_mask(one, case.lens, case.longest)
    last = []

    def run():
        last[:] = [one.padded(x, mask)]

    return Run(run, lambda: unpad_rows(last[0].numpy(), case.lens), detail="SDPA with a mask of lengths")


def micro(case, size):
    one, parts = Layer(case), MicroBatches(case, size)
    rows = case.rows(one.input)
    work = []
    for part in parts.parts:
        lens = parts.lens(part)
        work.append((torch.from_numpy(parts.padded(rows, part)), length_mask(one, lens, max(lens))))
    last = []

    def run():
        last[:] = [one.padded(x, mask) for x, mask in work]

    return Run(run, lambda: parts.gather([r.numpy() for r in last]))


def packed(case, dtype=torch.float32, compiled=False):
    one = Layer(case, dtype)
    x = torch.from_numpy(case.rows(one.input)).to(dtype)
    offsets = case.offsets.tolist()
    before, after, detail = one.before, one.after, "one SDPA a sequence"
    if compiled:
        if one.input == "QKV":
            raise Skip("nothing but SDPA to compile")
        torch._inductor.config.freezing = True
        before, after = torch.compile(before), torch.compile(after)
        detail += "; the rest compiled, before and after"
    last = []

    def run():
        last[:] = [after(x, one.attend_each(before(x), offsets))]

    return Run(run, lambda: last[0].float().numpy(), detail=detail)


def nested(case):
    # Choosing among the kernels for GPUs fails where there is no driver.
    for kernel in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(False)
    one = Layer(case)
    if one.causal or 0 in case.lens:
        raise Skip("nested tensors have no causal SDPA, and none of empty sequences")
    rows = torch.from_numpy(case.rows(one.input))
    offsets = torch.from_numpy(case.offsets)

    def jagged(t):
        return torch.nested.nested_tensor_from_jagged(t, offsets, max_seqlen=case.longest, min_seqlen=min(case.lens))

    last = []

    def run():
        x = jagged(rows)
        qkv = one.before(x)
        q, k, v = (t.contiguous().unflatten(-1, (H, D)).transpose(1, 2) for t in qkv.chunk(3, -1))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=one.causal)
        last[:] = [one.after(x, o.transpose(1, 2).flatten(-2))]

    return Run(run, lambda: last[0].values().numpy(), detail="jagged layout")


def linear(case, weight, inner, bias, act=None, residual=None):
    w = torch.from_numpy(np.ascontiguousarray(case.array(weight, inner, -1).T))
    b = torch.from_numpy(case.array(bias, -1))
    x = torch.from_numpy(case.rows("X"))
    r = torch.from_numpy(case.rows(residual)) if residual else None
    last = []

    def run():
        y = F.linear(x, w, b)
        if act:
            y = act(y)
        if r is not None:
            y += r
        last[:] = [y]

    return Run(run, lambda: last[0].numpy(), detail="linear on packed rows")


def norm(case):
    x = torch.from_numpy(case.rows("X"))
    g, e = (torch.from_numpy(case.array(n, -1)) for n in ("gamma", "beta"))
    last = []

    def run():
        last[:] = [F.layer_norm(x, (x.shape[1],), g, e)]

    return Run(run, lambda: last[0].numpy())


def squares(case, name):
    """A ragged tensor of (batch, head, len, len) as one tensor a sequence."""
    flat, at, all_ = case.array(name, -1), 0, []
    for n in case.lens:
        all_.append(torch.from_numpy(flat[at : at + H * n * n].reshape(H, n, n)))
        at += H * n * n
    return all_


def heads(case, name):
    rows = torch.from_numpy(case.rows(name)).view(-1, H, D)
    return [rows[a:b].transpose(0, 1) for a, b in zip(case.offsets, case.offsets[1:])]


def each(run_one, *operands):
    last = []

    def run():
        last[:] = [run_one(*one) for one in zip(*operands)]

    return last, run


def qkt(case):
    scaled = [q * 0.125 for q in heads(case, "Q")]
    last, run = each(lambda q, k: q @ k.transpose(1, 2), scaled, heads(case, "K"))
    return Run(run, lambda: np.concatenate([s.numpy().reshape(-1) for s in last]), detail="one matmul a sequence")


def softmax(case):
    last, run = each(lambda s: torch.softmax(s, -1), squares(case, "S"))
    return Run(run, lambda: np.concatenate([p.numpy().reshape(-1) for p in last]), detail="one softmax a sequence")


def attnv(case):
    last, run = each(lambda p, v: p @ v, squares(case, "P"), heads(case, "V"))
    done = lambda: np.concatenate([o.transpose(0, 1).numpy().reshape(-1) for o in last])
    return Run(run, done, detail="one matmul a sequence")


OPERATORS = {
    "proj1": lambda case: linear(case, "W", 512, "Bias"),
    "proj2": lambda case: linear(case, "W", 512, "Bias", residual="Res"),
    "ff1": lambda case: linear(case, "W", 512, "Bias", act=F.relu),
    "ff2": lambda case: linear(case, "W", 2048, "Bias", residual="Res"),
    "layer-norm": norm,
    "qkt": qkt,
    "softmax": softmax,
    "attnv": attnv,
}


def flat(case):
    """The plain loop over the same bytes: one dimension, no triangle."""
    a, b = (torch.from_numpy(case.array(n, -1)) for n in ("X", "Y"))
    out = torch.empty_like(a)
    op = torch.add if case.workload == "tradd" else torch.mul
    return Run(lambda: op(a, b, out=out), out.numpy, detail="one dense vector of the same bytes")

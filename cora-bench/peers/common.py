"""What all peers share: the case to run, ragged and padded forms of arrays, choosing a micro-batch size."""

import time

import numpy as np


class Skip(Exception):
    """This peer has no form of this workload, or is not installed."""


class Case:
    """A workload on a batch. `x["X"]` is an input, in row-major ragged order."""

    def __init__(self, message):
        self.workload = message["workload"]
        self.threads = message["threads"]
        self.lens = message.get("lens") or []
        self.products = message.get("products") or []
        self.size = message.get("size") or 0
        self.folder = message["folder"]
        self.files = message["inputs"]
        self.x = {name: np.load(file, mmap_mode="r") for name, file in self.files.items()}
        self.offsets = np.concatenate([[0], np.cumsum(self.lens)]).astype(np.int64)
        self.tokens = int(self.offsets[-1])
        self.longest = max(self.lens, default=0)

    def array(self, name, *shape):
        """A copy of an input that may be written."""
        return np.array(self.x[name]).reshape(shape)

    def rows(self, name):
        """A tensor of (token, ...) as a matrix of tokens."""
        return np.array(self.x[name]).reshape(self.tokens, -1)


class Run:
    """`run()` is timed, `prepare()` before it is not, `output()` gives the last result in ragged order."""

    def __init__(self, run, output, prepare=lambda: None, detail=""):
        self.run, self.output, self.prepare, self.detail = run, output, prepare, detail

    def once(self):
        self.prepare()
        self.run()


def save(file, array):
    np.save(file, np.ascontiguousarray(array, dtype=np.float32).reshape(-1))


def pad_rows(rows, lens, longest):
    """(tokens, n) to (batch, longest, n), zeros beyond each length."""
    padded = np.zeros((len(lens), longest, rows.shape[1]), rows.dtype)
    at = 0
    for b, n in enumerate(lens):
        padded[b, :n] = rows[at : at + n]
        at += n
    return padded


def unpad_rows(padded, lens):
    """(batch, longest, ...) to (tokens, ...)."""
    return np.concatenate([padded[b, :n] for b, n in enumerate(lens)] or [padded[:0, 0]])


class MicroBatches:
    """The batch sorted by length and cut into equal parts, each padded to its longest."""

    def __init__(self, case, size):
        self.order = sorted(range(len(case.lens)), key=lambda b: -case.lens[b])
        self.parts = [self.order[i : i + size] for i in range(0, len(self.order), size)]
        self.case = case

    def lens(self, part):
        return [self.case.lens[b] for b in part]

    def padded(self, rows, part):
        o = self.case.offsets
        picked = np.concatenate([rows[o[b] : o[b + 1]] for b in part])
        lens = self.lens(part)
        return pad_rows(picked, lens, max(lens))

    def gather(self, results):
        """Results of the parts, (part, longest, ...) each, to (tokens, ...) in the batch's own order."""
        rows = {}
        for part, result in zip(self.parts, results):
            for b, row in zip(part, result):
                rows[b] = row[: self.case.lens[b]]
        return np.concatenate([rows[b] for b in range(len(self.case.lens))])


def best_micro_batch(case, build):
    """The fastest of `build(size)` over powers of two from 2, three runs each."""
    best, size = None, 2
    while True:
        size = min(size, len(case.lens))
        run = build(size)
        run.once()
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run.once()
            times.append(time.perf_counter() - start)
        if best is None or min(times) < best[0]:
            best = (min(times), run, size)
        if size >= len(case.lens):
            break
        size *= 2
    best[1].detail = f"micro-batches of {best[2]}"
    return best[1]

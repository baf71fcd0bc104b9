"""Runs one peer for cora-bench: JSON objects, one a line, on stdin and stdout.

    {"cmd": "open", "peer": P, "workload": W, "threads": N, "inputs": {NAME: NPY}, "lens": [...], ...}
        -> {"ok": true, "detail": TEXT}  or  {"skip": REASON}
    {"cmd": "turn", "min_ms": X, "max_runs": N}   one run to warm up, unless runs are long, then timed ones
        -> {"ms": [...]}
    {"cmd": "output", "file": NPY}   the last run's result, in row-major ragged order without padding
        -> {"ok": true}

A peer is a function that takes a `Case` and gives a `Run`. What libraries print goes to stderr.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

# This process is stopped while others are timed, so it must not outlive the one that wakes it.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(**fields):
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


def open_peer(message):
    os.environ.update(
        {name: str(message["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    )
    import common

    module = {
        "torch": "torch_peers",
        "tf": "tf_peers",
        "openvino": "openvino_peers",
        "mkl": "blas_peers",
        "openblas": "blas_peers",
        "scipy": "sparse_peers",
        "mlir": "sparse_peers",
    }[message["peer"].split("-")[0]]
    try:
        run = __import__(module).build(message["peer"], common.Case(message))
        run.once()
        return run
    except ImportError as e:
        raise common.Skip(f"not installed ({e})") from None


def turn(run, min_ms, max_runs):
    def timed():
        run.prepare()
        start = time.perf_counter_ns()
        run.run()
        return (time.perf_counter_ns() - start) / 1e6

    first = timed()
    times = [] if first < min_ms else [first]
    while len(times) < max_runs and sum(times) < min_ms:
        times.append(timed())
    return times


def main():
    run = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if message["cmd"] == "open":
                import common

                try:
                    run = open_peer(message)
                    reply(ok=True, detail=run.detail)
                except common.Skip as e:
                    reply(skip=str(e))
            elif message["cmd"] == "turn":
                reply(ms=turn(run, message["min_ms"], message["max_runs"]))
            elif message["cmd"] == "output":
                common.save(message["file"], run.output())
                reply(ok=True)
        except Exception as e:
            traceback.print_exc(file=sys.stderr)
            reply(error=f"{type(e).__name__}: {e}")


main()

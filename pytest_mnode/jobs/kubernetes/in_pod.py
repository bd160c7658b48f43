"""The main process of a job's pod: waits for its order, and runs torchrun.

It uses only the standard library; its text is the argument of the image's Python, with

    wait PATH LIMIT_S    wait for the order at PATH, then run it; the exit status is the command's
    order PATH           take an order from standard input: its length in a line, and its JSON

An order has the command, its variables beside the container's, its directory, and its standard
input. A SIGTERM, by which Kubernetes ends pods, is passed on to the command.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

LATE = 124
LINGER_S = 2.0


def take(path: str) -> None:
    """Store an order atomically: `wait` sees the whole order or none."""
    data = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
    # It may hold secrets of the job. pathlib would cost its import.
    with os.fdopen(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)
    os.rename(f"{path}.new", path)  # noqa: PTH104


def wait(path: str, limit_s: float) -> int:
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    end = time.monotonic() + limit_s
    while not os.path.exists(path):  # noqa: PTH110
        if time.monotonic() > end:
            print(f"no order within {limit_s:g} s: the run is gone", flush=True)
            return LATE
        time.sleep(0.05)
    with open(path, "rb") as file:  # noqa: PTH123
        return run(json.load(file))


def run(order: dict) -> int:  # type: ignore[type-arg]
    """Run the order's command. As on other nodes, what the user set replaces the variables of
    image, template and device plugins, and what is only passed on does not."""
    there = os.path.isdir(order["cwd"])  # noqa: PTH112
    stdin = os.memfd_create("stdin")
    os.write(stdin, order["text"].encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    try:
        command = subprocess.Popen(
            order["argv"],
            stdin=stdin,
            env={**order["passed"], **os.environ, **order["env"]},
            cwd=order["cwd"] if there else "/",
        )
    except OSError as error:
        print(f"cannot run {order['argv'][0]}: {error.strerror}", flush=True)
        return 127
    finally:
        os.close(stdin)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(command.pid, number))
    while True:  # reaps the pod's orphans too
        pid, status = os.wait()
        if pid == command.pid:
            code = command.returncode = os.waitstatus_to_exitcode(status)
            if code < 0:
                linger()
            return code if code >= 0 else 128 - code


def linger() -> None:
    """Keep the pod alive until a process in it that sent the signal has reported it."""
    end = time.monotonic() + LINGER_S
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if sum(name.isdigit() for name in os.listdir("/proc")) < 2:  # noqa: PTH208
            return
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "order":
        take(sys.argv[2])
    else:
        sys.exit(wait(sys.argv[2], float(sys.argv[3])))

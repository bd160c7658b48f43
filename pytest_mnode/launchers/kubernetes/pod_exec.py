"""Stands for one command in a pod: `pod_exec.py SOCKET HOST COMMAND…`; the bridge runs it.

Run by its path, without site-packages. Its three standard streams are given to the bridge, as ssh
gives them to the master of a connection. The exit status is the command's; 255 where it was not
run, or the connection was lost.
"""

from __future__ import annotations

import json
import socket
import sys


def main(path: str, host: str, *argv: str) -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bridge:
            bridge.connect(path)
            order = json.dumps({"exec": host, "argv": argv}).encode() + b"\n"
            socket.send_fds(bridge, [order], [0, 1, 2])
            answer = b""
            while data := bridge.recv(4096):
                answer += data
    except OSError as error:
        sys.stderr.write(f"the run's way to Kubernetes has ended: {error.strerror}\n")
        return 255
    found: dict[str, object] = json.loads(answer or b"{}")
    if found.get("problem"):
        sys.stderr.write(f"{found['problem']}\n")
    return int(str(found.get("status", 255)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

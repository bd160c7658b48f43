"""The rank of a job in tests: it needs no torch, and follows the files in its directory."""

# A rank that prints its number and waits for SIGTERM; if one dies the others end as well, like
# ranks in torch's collectives: all of them watch one file.
RANK = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
me = " ".join(os.environ[n] for n in ("RANK", "MNODE_REQUEUE", "TORCHELASTIC_RESTART_COUNT"))
pins = [os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("up", me, os.environ["WORLD_SIZE"], *pins, os.uname().nodename, flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if "stubborn" not in sys.argv and stopped:
        print("sigterm", me, flush=True)
        sys.exit(75)
    if (place / f"broken.{me.split(' ', 1)[1].replace(' ', '.')}").exists():
        sys.exit(1)
    if (place / "done").exists():
        sys.exit(0)
    time.sleep(0.05)
"""

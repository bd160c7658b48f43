"""Root causes in what ranks do, and what ranks print because of others."""

from __future__ import annotations

from pytest_mnode.logs.causes.kinds import COMPLETION, QP_GONE, ended_by, lost, root

_IN_WRITING = r"(?:recv|send|read|write|Recv|Send|Read|Write)\w*"

RANKS = (
    root(
        "ranks run different versions",
        "ranks load different versions of NCCL",
        "install one version on all nodes; check LD_LIBRARY_PATH",
        r"(?i:NCCL\w* version mismatch|mismatched NCCL|different NCCL versions)",
    ),
    root(
        "stray connection",
        "something that is no rank of this communicator connected to it",
        "look for another job, version of NCCL or port scanner on these nodes",
        r"socketFinalizeAccept: wrong (?P<detail>type|magic)|wrong magic \w+ ?!=",
    ),
    root(
        "rank used twice",
        "two processes have the same rank, or a rank is outside of the world",
        "check RANK and WORLD_SIZE, and node ranks given to launchers",
        r"Bootstrap Root ?: (?P<detail>rank \d+ of \d+ ranks has already checked in|mismatch.*)",
        r"(?P<detail>Invalid rank requested ?: \d+/\d+)",
    ),
    root(
        "ranks' collectives differ",
        "ranks called different collectives, or the same with different sizes",
        "find the branch in which ranks part",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running",
        r"(?i:mismatched collective detected).*around rank (?P<rank>\d+)",
        r"(?i:mismatched collective|collective mismatch)(?:.*peer (?P<peer>[^\s<]+))?",
        r"Communicator ranks have different (?P<detail>\w+) operation counts",
        r"Message truncated ?: received (?P<detail>\d+ bytes instead of \d+)",
        r"(?P<detail>receiving \d+ bytes instead of \d+)",
        r"Collectives? (?:differ|do(?:es)? not match)|Error type: \w*MISMATCH",
    ),
    root(
        "rank did not join",
        "ranks wait in a collective that others did not reach",
        "look at what these ranks do instead: their stack, log and data",
        r"ranks \[(?P<rank>[\d, ]+)\] are the lagging ranks that caused this timeout",
        r"\[(?P<rank>[\d, ]+)\] joined but didn't finish collective #(?P<detail>\d+)",
        r"missing ranks: [\[{]?(?P<rank>[\d, ]+)",
        r"[Rr]anks? (?P<rank>[\d, ]+) failed to pass monitoredBarrier",
        r"(?i:not all ranks joining collective)|submitted to be reduced.* by subset of ranks",
        r"^\[[\w/.]*Horovod(?:Allreduce|Allgather|Broadcast)",
        r"Timed out after \d+ seconds waiting for (?:clients|workers)\. (?P<detail>\d+/\d+)",
    ),
)
"""Ranks that do not do the same."""

PROGRAMS = (
    root(
        "wrong results",
        "a collective gave other values than it must",
        "find the GPU or link that changes data: run pairs of GPUs and of nodes by themselves",
        r"Out of bounds values ?: (?P<detail>[1-9]\d*)",
    ),
    root(
        "crashed",
        "a process crashed",
        "look at its stack and core file",
        rf"Segmentation fault|(?<!due to )SIGSEGV|signal 11\b|{ended_by(11)}|Illegal instruction|"
        r"SIGILL|exited on signal [48]\b|Caught signal (?P<detail>\d+)",
    ),
    root(
        "Python error",
        "the program raised an exception",
        "read the traceback",
        r"^(?P<detail>(?:[a-z_]\w*\.)*(?:[A-Z]\w*(?:Error|NotFound)|\w*Exception))(?::|$)",
        unless_other=True,
    ),
    root(
        "GPU peer access off",
        "GPUs of a node that could reach each other directly do not",
        "check ACS, the IOMMU and the driver",
        r"P2P is disabled between (?:\w+ )?connected GPUs (?P<detail>\d+ and \d+)",
        in_info=True,
    ),
    root(
        "killed",
        "somebody killed a process, the kernel for want of memory perhaps",
        "look at the node's kernel log for the out-of-memory killer, and at the scheduler",
        r"(?:^|line \d+: +\d+ |tasks? [\d,-]+: )Killed\b|exited on signal 9\b",
        rf"{ended_by(9)}|[Ss]ignals?[. ](?:9 )?\(?SIGKILL",
    ),
)
"""How a process ended, where nothing else tells why."""

ENDINGS = ("bus error", "crashed", "killed")
"""Causes that only say how a process ended."""

CONSEQUENCES = (
    lost(
        "collective timed out",
        "a rank waited in a collective that did not end in time",
        "look for the rank that did not join, and for what it does instead",
        r"Watchdog caught collective operation timeout",
        r"(?:detected by watchdog|Timeout) at (?:NCCL )?work(?: sequence id)?: \d+",
    ),
    lost(
        "watchdog stuck",
        "a CUDA or NCCL call of a rank did not return",
        "look at the stacks of this rank",
        r"watchdog got stuck for (?P<detail>\d+ seconds)|Heartbeat monitor timed out",
    ),
    lost(
        "rank waited in vain",
        "a peer did not send or receive in time",
        "look at what the peer does",
        r"Timed out waiting (?P<detail>\d+ms for \w+) operation",
        r"(?:Read|Write) timeout \[|Wait timeout$|Application timeout caused pair closure",
    ),
    lost(
        "store key not set",
        "another rank did not come as far as to set a key of the store in time",
        "look for the rank that sets it, mostly rank 0",
        r"(?:[Ww]ait timeout after \d+ms, keys|Timeout waiting for key): (?P<detail>\S+)",
        r"\[(?P<rank>\d+)\] is setting up NCCL .* (?P<detail>from \[\d+\]).*(?i:timeout)",
        r"Socket Timeout|store->get\(.*\) got error: .*(?i:timeout)",
    ),
    lost(
        "gloo not connected",
        "a peer of the group could not be reached",
        "see whether it runs; set GLOO_SOCKET_IFNAME to an interface that reaches all nodes",
        r"connectFullMesh failed",
    ),
    lost(
        "store connection lost",
        "the process that keeps the store, mostly rank 0, is gone",
        "look at rank 0 and at the launcher",
        rf"{_IN_WRITING} failed on SocketImpl|recvValue failed|sendBytes failed|recvd 0 bytes|"
        r"failed to recv, got 0 bytes|Connection was likely closed|DistNetworkError",
        r"TCPStore.*(?i:reset|closed|fail)|store->get\(.*\) got error|RendezvousConnectionError",
    ),
    lost(
        "connection closed by peer",
        "the process at the other end is gone",
        "look at that process",
        r"(?i:connection (?:closed|reset|refused|aborted)|connection was (?:closed|reset)|"
        r"socket closed|remote (?:process )?(?:exited|closed))",
        r"Broken ?[Pp]ipe|Connection(?:Reset|Refused|Aborted)Error",
        r"RAS.*\bdead\b|Socket recv failed|Failed to execute operation|Error encountered progress",
        rf"{COMPLETION}5\b|{QP_GONE}|its worker process has died|Worker unexpectedly exits|"
        r"Failed to connect to GCS",
    ),
    lost(
        "NCCL failed",
        "a communicator was aborted or a call of NCCL failed",
        "look for what NCCL warned of before",
        r"nccl(?:Remote|System|Internal|UnhandledCuda|InvalidUsage)\w*(?:Error)?\b|NCCL error in|"
        r"NCCL communicator was aborted|NCCL watchdog|DistBackendError|Test NCCL failure",
        r"NCCL operation \w+.* failed|unhandled (?:system|cuda) error",
        r"socketTryAccept: Accept failed",
        r"NCCL INFO (?P<detail>(?:\S*/)?(?:init|group)\.cc:\d+(?: \(.*\))? -> (?![07]\b)\d)",
        in_info=True,
    ),
    lost(
        "MPI failed",
        "a call of MPI failed",
        "look for what was printed before, and for another rank that failed first",
        r"(?:Fatal error in|PMIX ERROR:|\*\*\* (?=MPI_ERR_\w+:)) ?(?P<detail>[\w-]+)",
        r"ucp_ep_create\(\S+\) failed",
    ),
    lost(
        "aborted",
        "a process ended itself after an error",
        "look for the error before",
        rf"SIGABRT|Aborted(?: \(core dumped\))?$|signal 6\b|{ended_by(6)}|"
        r"taking the entire process down|terminate called after|MPI_ABORT was invoked on rank "
        r"(?P<rank>\d+)",
    ),
    lost(
        "ended by the launcher",
        "the launcher ended this process because another one failed",
        "look for the rank that failed first",
        r"ChildFailedError|CalledProcessError|Process(?:Exited|Raised)Exception|SignalException",
        r"closing signal SIG|death signal|SIGTERM|failed \(exitcode: \d+\)",
        rf"exitcode\s*: 1\b|{ended_by(15)}|Rendezvous(?:Closed|State)Error|Job step aborted|"
        r"CANCELLED AT|Terminating StepId",
        r"tasks? [\d,-]+: (?:Exited|Terminated)",
        r"processes exited with non-zero status|returned a non-zero exit code|return code = \d+|"
        r"CrashLoopBackOff",
    ),
)
"""Of a rank that is dead, late, or elsewhere; those that tell the most come first."""

"""slurm.conf of the Slurm on a rack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_mnode.launchers.node import Node

CPUS = 2
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
TASK_PROLOG = """\
#!/bin/sh
echo "export MNODE_SITE=$SLURMD_NODENAME"
"""
_CONF = """\
ClusterName=rack
SlurmctldHost={login}({login_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket,cred_expire=10
CredType=cred/munge
MpiDefault=none
ReturnToService=1
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd.%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={directory}/etc/task_prolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_resolution=1,sched_interval=2,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmctldTimeout=10
SlurmdTimeout={down_after_s}
MessageTimeout=5
TCPTimeout=2
BatchStartTimeout=10
KillWait=3
MinJobAge=120
InactiveLimit=0
JobRequeue=1
PropagateResourceLimits=NONE
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=1:00:00 State=UP OverSubscribe=NO
{more}
"""


def conf(
    directory: Path, login: Node, computes: Sequence[Node], down_after_s: int, more: str = ""
) -> str:
    """Text of slurm.conf: slurmctld on `login`, slurmd on `computes`, files in `directory`."""
    lines = [
        f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
        for node in computes
    ]
    return _CONF.format(
        login=login.name,
        login_address=login.address,
        directory=directory,
        down_after_s=down_after_s,
        nodes="\n".join(lines),
        names=",".join(node.name for node in computes),
        more=more,
    )

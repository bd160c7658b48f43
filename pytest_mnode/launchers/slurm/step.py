"""The command that runs another once on one node of an allocation, as a step of it."""

from __future__ import annotations

from collections.abc import Sequence

NOT_FOR_SRUN = (
    *("SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE", "SLURM_EXACT"),
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_EXCLUSIVE", "SLURM_HOSTFILE", "SLURM_DISTRIBUTION"),
    *("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"),
    *("SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_TIMELIMIT", "SLURM_WAIT", "SLURM_MPI_TYPE"),
    *("SLURM_PROLOG", "SLURM_EPILOG", "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "SLURM_DEBUG"),
    *("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_GPU", "SLURM_RELATIVE"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPU_FREQ"),
    *("SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND"),
    *("SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_OVERCOMMIT", "SLURM_PROFILE"),
    *("SLURM_DIST_PLANESIZE", "SLURM_GRES", "SLURM_STEP_GRES", "SLURM_CORE_SPEC"),
    *("SLURM_MULTI_PROG", "SLURM_UNBUFFEREDIO", "SLURM_IMMEDIATE", "SLURM_WORKING_DIR"),
)
"""Variables that srun takes for options: a job script's are for the job, not for this step."""


def step_command(job_id: int, node: str, argv: Sequence[str]) -> list[str]:
    """srun of `argv`, once, with all that the job has of the node, beside whatever runs there.

    The step has srun's standard streams, and its environment with Slurm's variables added.
    """
    unset = [word for name in NOT_FOR_SRUN for word in ("-u", name)]
    options = [
        *(f"--jobid={job_id}", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"),
        *("--kill-on-bad-exit=0", "--no-kill", "--job-name=pytest-mnode", "--quiet"),
        # Else what is no line yet, such as a heartbeat, stays on the node.
        "--unbuffered",
    ]
    return ["env", *unset, "srun", *options, "--", *argv]

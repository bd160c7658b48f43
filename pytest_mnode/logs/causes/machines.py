"""Root causes in machines: a node, its scheduler, GPUs, memory and files."""

from __future__ import annotations

from pytest_mnode.logs.causes.kinds import CUDA_ERROR, ended_by, root

MACHINES = (
    # Schedulers and launchers.
    root(
        "not scheduled",
        "the scheduler has no room for the job",
        "ask for what its nodes have, or wait until they are free",
        r"nodes are available: .*(?P<detail>Insufficient [\w./-]+)|FailedScheduling",
        r"Unable to allocate resources: (?P<detail>.+)|Requested node configuration is not avail",
        r"not enough slots available|No available node types can fulfill",
    ),
    root(
        "not started",
        "a launcher could not start processes on a node",
        "start a program by hand on that node in the same way",
        r"Task launch for \S+ failed on node (?P<host>[\w.-]+): (?P<detail>.+)",
        r"(?:Application launch failed|Unable to create step for job \w+): (?P<detail>.+)",
        r"ssh: connect to host (?P<peer>\S+) port \d+: (?P<detail>.+)",
        r"Host key verification failed|Permission denied \(publickey|execve\(\): (?P<detail>.+)",
        r"\b(?P<detail>ErrImagePull|ImagePullBackOff|CreateContainer\w*Error|RunContainerError)",
        r"was unable to (?:reliably start|launch the spec|find the spec)|create pod sandbox|"
        r"\b(?:orted|prted|hydra_pmi_proxy): (?:command )?not found|pyxis: .*fail",
    ),
    root(
        "node lost",
        "the scheduler or the launcher lost a node",
        "look at the node's power, kernel log and management link",
        r"[Nn]ode failure on (?P<host>[\w.-]+)",
        r"DUE TO NODE FAILURE",
        r"Remote daemon ?: .* on node (?P<host>[\w.-]+)",
        r"[PO]RTE has lost communication with a remote daemon|NodeNotReady|TaintManagerEviction",
        r"node manager has mistakenly been marked as dead|This node has been? marked as dead",
        r"address: (?P<host>[\w.:-]+) .*(?:marked dead|node has crashed)|its node has died",
    ),
    root(
        "host out of memory",
        "the kernel or a cgroup had no memory left",
        "raise the job's memory limit or use less memory per rank",
        r"tasks? [\d,-]+: Out Of Memory",
        r"(?i:out of memory: killed process|oom[-_]kill|\bOOM[ -]?killed|cgroup out of memory)",
        r"[Mm]emory on the node \(IP: (?P<host>[\w.:]+)|low on (?:resource: )?memory",
        r"due to memory pressure",
        r"exceeded (?:job )?memory limit|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc",
        r"\bMemoryError\b|Unable to allocate \S+ [KMGT]iB",
    ),
    root(
        "time limit",
        "the scheduler ended the job at its time limit",
        "ask for more time",
        r"DUE TO TIME LIMIT",
    ),
    root(
        "preempted",
        "the scheduler gave the nodes to another job",
        "run again, or in a queue that is not preempted",
        r"DUE TO PREEMPTION|\bPREEMPTED\b",
    ),
    # GPUs and their driver.
    root(
        "GPU lost",
        "a GPU fell off the bus or its driver lost it",
        "drain the node, look at its Xid errors, and reset or replace the GPU",
        r"(?i:GPU has fallen off the bus|GPU is lost)|Unable to determine the device handle",
        r"Xid \(PCI:(?P<device>[\w:.]+)\): (?P<detail>79)\b",
    ),
    root(
        "GPU memory error",
        "uncorrectable ECC error in GPU memory",
        "drain the node and reset or replace the GPU",
        r"(?i:uncorrectable ECC|ECC error|double[- ]bit)|cudaErrorECCUncorrectable",
        r"Xid \(PCI:(?P<device>[\w:.]+)\): (?P<detail>48|63|64|94|95)\b",
    ),
    root(
        "NVLink error",
        "a GPU reached another one over NVLink with an error",
        "drain the node; look at nvidia-smi nvlink -e",
        r"(?i:uncorrectable nvlink|over nvlink or a hardware error|cudaErrorNvlink)",
        r"Xid \(PCI:(?P<device>[\w:.]+)\): (?P<detail>74|14[4-9]|150)\b",
    ),
    root(
        "Xid",
        "the GPU driver reported an error",
        "look up the Xid number in the driver's documentation",
        r"Xid \(PCI:(?P<device>[\w:.]+)\): (?P<detail>\d+)",
    ),
    root(
        "fabric manager not ready",
        "NVSwitch is not set up on this node",
        "start nvidia-fabricmanager in the driver's version",
        rf"{CUDA_ERROR}system not (?:yet initialized|ready)|\b(?:failure|error) 802\b",
        r"(?i:fabric ?manager).*(?i:fail|not (?:running|started|ready)|error)",
    ),
    root(
        "IMEX not ready",
        "memory cannot be shared between nodes over NVLink",
        "start nvidia-imex on all nodes of the domain, or set NCCL_MNNVL_ENABLE=0",
        r"\bIMEX\b.*(?i:fail|not |error|unavailable|missing)|nvidia-imex.*(?i:fail|error)",
        r"MNNVL.*(?i:fail|error)|CU_MEM_HANDLE_TYPE_FABRIC.*(?i:fail|not )",
    ),
    root(
        "NVLS not set up",
        "NVLink multicast (NVLS) failed, usually for the fabric manager or NVSwitch",
        "restart nvidia-fabricmanager; NCCL_NVLS_ENABLE=0 goes without",
        r"nvls\.cc:\d+.*NCCL (?:WARN|ERROR)",
        r"(?:NVLS|NVLink SHARP).*(?i:fail|error|unable)|(?i:fail\w* .*(?:NVLS|NVLink SHARP))",
        r"cuMulticast\w+.*(?i:fail|error)",
    ),
    root(
        "GPU out of memory",
        "a rank asked for more memory than its GPU had left",
        "use a smaller batch or model per GPU; look for other processes on it",
        r"(?i:(?:cuda|hip) out of memory)|torch\.\w*\.?OutOfMemoryError|cudaErrorMemoryAllocation",
        rf"{CUDA_ERROR}out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        r"CUDA failure .*'out of memory'|Failed to (?:CUDA|HIP) [mc]alloc",
    ),
    root(
        "device-side assert",
        "a CUDA kernel's assertion failed, such as an index out of range",
        "run with CUDA_LAUNCH_BLOCKING=1 and check indices and labels",
        r"device-side assert|Assertion `.*` failed\.?$",
    ),
    root(
        "no kernel for this GPU",
        "torch or a library was not built for this GPU's architecture",
        "install a build that supports it",
        r"no kernel image is available|enqueue\.cc.*'named symbol not found'",
    ),
    root(
        "no GPU driver",
        "the GPU driver is missing, too old, or another version than its libraries",
        "install the matching driver; give the container the GPUs",
        r"Driver/library version mismatch|CUDA driver version is insufficient",
        r"no CUDA-capable device|No CUDA GPUs are available|no NVIDIA driver|hipErrorNoDevice",
        r"Failed to find CUDA library|libcuda\.so\S*: cannot open|No HIP GPUs are available",
        r"nvidia-container-cli: initialization error|could not select device driver",
    ),
    root(
        "no such GPU",
        "a rank chose a GPU number that its node does not have",
        "start as many ranks as there are GPUs; check CUDA_VISIBLE_DEVICES",
        r"invalid device ordinal",
    ),
    root(
        "GPU busy",
        "another process holds the GPU",
        "end the other process; check the compute mode",
        r"device\(s\) is/are busy or unavailable",
    ),
    root(
        "GPU shared by two ranks",
        "two ranks of a communicator chose the same GPU",
        "set the device by LOCAL_RANK before the first collective",
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device "
        r"(?P<detail>\w+)",
    ),
    root(
        "GPU crashed",
        "a kernel reached memory it may not, or did not finish",
        "run with CUDA_LAUNCH_BLOCKING=1; look for Xid errors in the kernel log",
        rf"{CUDA_ERROR}(?:an )?(?P<detail>illegal memory access|unspecified launch failure|"
        r"misaligned address|illegal instruction|launch timed out|the launch timed out)",
        r"(?:Memory access fault|HW Exception) by GPU (?P<detail>\S+)",
        r"(?P<detail>HSA_STATUS_ERROR_(?:MEMORY\w*|EXCEPTION|ILLEGAL\w*|INVALID\w*))",
        r"amdgpu (?P<device>[\da-f:.]+): .*(?:GPU reset begin|ring \S+ timeout)",
    ),
    # Memory and files of the node.
    root(
        "shared memory too small",
        "/dev/shm is full or too small",
        "give the container more: --shm-size or --ipc=host; remove stale files",
        r"(?:/dev/shm|nccl-shm|shmutils|posix_fallocate|torch_).*No space left",
        r"Error while creating shared memory segment|failed to extend /dev/shm|shmget\(.*No space",
        r"check that /dev/shm .*more available memory",
        r"insufficient shared memory|unable to (?:open|write|mmap) shared memory|"
        r"DataLoader worker .*Bus error",
    ),
    root(
        "shared memory segment missing",
        "a segment in /dev/shm is gone or in another container",
        "let the ranks of a node share /dev/shm; set RemoveIPC=no in logind.conf",
        r"Error while attaching to shared memory segment (?P<detail>\S+)",
        r"shmat\(.*fail|failed to connect to remote FIFO|failed: Shared memory error",
    ),
    root(
        "bus error",
        "a process could not write to memory behind a file, mostly /dev/shm",
        "see that /dev/shm and the file systems have room",
        rf"\bBus error\b|SIGBUS|exited on signal 7\b|{ended_by(7)}",
    ),
    root(
        "disk full",
        "a file system has no room left",
        "remove files or raise the quota",
        r"No space left on device|Disk quota exceeded|ENOSPC|low on resource: ephemeral-storage",
    ),
    root(
        "process limit",
        "no more processes, threads or open files are allowed",
        "raise ulimit -u, -n or the cgroup's pids.max",
        r"(?i:\[Errno 11\]|fork|thread|process)\w*.*Resource temporarily unavailable",
        r"can't start new thread|pthread_create failed|Too many open files|[Uu]nable to fork",
    ),
)

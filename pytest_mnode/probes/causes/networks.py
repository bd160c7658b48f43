"""Root causes in networks: RDMA, plugins, interfaces, names, sockets."""

from __future__ import annotations

from pytest_mnode.probes.causes.kinds import COMPLETION, root
from pytest_mnode.probes.nccl_log.gids import NO_ROUTE, WRONG_GID

NETWORKS = (
    # RDMA.
    root(
        "memory could not be registered",
        "an RDMA device may not pin memory",
        "set ulimit -l unlimited in the job; for GPU memory load nvidia-peermem or use DMA-BUF",
        r"(?P<detail>(?:wrap_)?ibv_reg_\w*mr\w*)(?:\(\w*\))? (?:.*)?fail",
        r"(?P<detail>fi_mr_reg\w*).*fail|NET/OFI .*(?i:unable to register|register\w* fail)",
        r"(?i:memlock|locked memory|ulimit -l).*(?i:too (?:low|small)|limit|exceed)",
        r"(?i:unable to register memory|failed to register (?:user )?(?:buffer|memory|address))",
        r"UCX .*(?i:failed to register)|(?i:GDRCOPY|gdr_\w+).*fail",
    ),
    root(
        "no RDMA resources",
        "an RDMA device could not be opened, or has no queues left",
        "look at ulimit -l, at /dev/infiniband in the container, and at the device",
        r"(?P<detail>ibv_(?:create_\w+|alloc_pd|open_device|get_device_list|query_\w+))\W.*fail",
        r"NET/IB ?: Unable to open device (?P<device>\w+)",
    ),
    root(
        "NIC failed",
        "an RDMA device reported a fatal event",
        "look at the kernel log of the node; reset or replace the NIC",
        r"(?:(?P<device>\w+:\d+) )?Got async event ?: (?P<detail>.*(?:catastrophic|fatal).*)",
        r"IBV_EVENT_DEVICE_FATAL",
    ),
    root(
        "port went down",
        "the link of an RDMA port failed",
        "look at the cable, the transceiver and the switch port",
        r"(?:(?P<device>\w+:\d+) )?Got async event ?: (?P<detail>port error)",
        r"IBV_EVENT_PORT_ERR|\b(?P<device>[a-z]\w+:\d+)\b.*(?i:port|link) (?:went |is )?down\b",
    ),
    root(
        "GID table changed",
        "addresses of an RDMA port changed while it was in use",
        "leave its IP addresses alone while jobs run",
        r"(?:(?P<device>\w+:\d+) )?(?:Got async event|Unknown event).*(?P<detail>GID table change)",
        r"IBV_EVENT_GID_CHANGE",
    ),
    root(
        "queue pair failed",
        "an RDMA device refused work that a rank gave it",
        "upgrade the NIC's firmware and NCCL; look at the kernel log",
        r"(?P<device>\w+:\d+) (?:Got async event ?: |async fatal event on QP ?\(?#?\w+\)?:? ?)"
        r"(?P<detail>.*work queue error)",
        r"(?:(?P<device>\w+:\d+) )?async fatal event",
        r"(?:(?P<device>\w+:\d+) )?Got async event ?: (?P<detail>.*(?:QP|CQ|queue).*)",
    ),
    # Which of the next three it is tell the addresses and the error: see `gids.connection_failure`.
    root(
        "queue pair not connected",
        "two RDMA ports could not be connected",
        "check the GID index of both ends, the state of the ports and the route between them",
        r"ibv_modify_qp.*fail|(?i:failed to modify QP)",
    ),
    root(
        WRONG_GID,
        "the addresses of two RDMA ports are of different types, link-local or empty",
        "set NCCL_IB_GID_INDEX to the same type (RoCE v2, IPv4) on all nodes, or unset it",
    ),
    root(
        NO_ROUTE,
        "there is no route between the subnets of two RDMA ports",
        "route between rails, or keep NCCL within a rail with NCCL_CROSS_NIC=0",
    ),
    root(
        "RDMA access refused",
        "an RDMA device may not reach the memory a rank gave it",
        "check nvidia-peermem, ACS and the IOMMU on both nodes",
        rf"{COMPLETION}(?P<detail>4|8|9|10|11)\b",
        r"(?P<detail>[Ll]ocal protection|[Rr]emote (?:access|operation|invalid request)\w*) "
        r"(?:error )?on (?P<device>\w+:\d+)",
    ),
    root(
        "RDMA receiver not ready",
        "a peer posted no buffers in time",
        "look at what the peer does; it may be stopped or swapping",
        rf"{COMPLETION}(?P<detail>13)\b",
        r"(?P<detail>RNR retry\w* (?:count|counter)? ?exceeded)(?:.* on (?P<device>\w+:\d+))?",
    ),
    root(
        "RDMA peer did not answer",
        "packets to a peer were not acknowledged, again and again",
        "check the link, PFC and routing between the two ports; see whether the peer died",
        rf"{COMPLETION}(?P<detail>12)\b",
        r"(?P<detail>(?i:transport retry count\w* exceeded))(?:.* on (?P<device>\w+:\d+))?",
        r"(?P<detail>Unresponsive receiver|Unreachable remote|Endpoint timeout)",
    ),
    root(
        "RDMA failed",
        "an RDMA operation ended with an error",
        "look up the status; see whether the peer died",
        rf"{COMPLETION}(?P<detail>(?!5\b)\d+)",
        r"Call to (?P<detail>ibv_\w+) failed|Send completion with error",
        r"<warn> err: \d+, message: (?P<detail>.+?) My EFA addr",
    ),
    root(
        "file system failed",
        "a file system answers with errors",
        "look at the mount on this node and at the file server",
        r"Stale file handle|Input/output error|Transport endpoint is not connected|"
        r"Read-only file system",
    ),
    # Plugins and interfaces.
    root(
        "network plugin not found",
        "a network that was asked for is not there",
        "install the plugin, add it to LD_LIBRARY_PATH, or unset NCCL_NET and NCCL_NET_PLUGIN",
        r"Error ?: network (?P<detail>\S.*?) not found",
        r"Failed to initialize any NET plugin",
        r"NET/Plugin ?: Could not find:? (?P<detail>(?!lib\w*ccl-net\.so|none\b)[\w.-]+)",
        r"NET/Plugin.*Plugin load \((?P<detail>(?!lib\w*ccl-net\.so)[\w./-]+)\) returned",
        r"(?i:failed to find) network (?P<detail>\S+)",
        in_info=True,
    ),
    root(
        "network plugin failed",
        "a network plugin could not be set up",
        "see that its provider and devices are there (fi_info -p efa), in the container too",
        r"NET/OFI .*(?:fi_getinfo.*fail|No eligible provider|optimal provider|Unexpected group)",
        r"NCCL WARN NET/OFI (?P<detail>.{3,120})",
        r"provider (?P<detail>\w+) output empty list",
        r"Failed to initialize NET plugin (?P<detail>\S.*)",
        in_info=True,
    ),
    root(
        "RDMA library missing",
        "libibverbs or a provider of it could not be loaded",
        "install rdma-core, in the container too",
        r"NCCL WARN.*(?:Failed to open|dlopen) libibverbs|libibverbs\S*: cannot open shared object",
        r"libibverbs: Warning: (?:couldn't load driver|no userspace device-specific driver)",
    ),
    root(
        "no such interface",
        "an interface that was asked for is not there or has no address",
        "correct NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
        r"Socket creation failed|Call to bind failed",
        r"[Nn]o (?:socket )?interface found|with family \d+ is neither AF_INET",
        r"Unable to find (?:address|interface) for:? ?\[?(?P<detail>[\w.-]+)",
        r"network device '(?P<device>[\w:.]+)' is not available",
    ),
    root(
        "SHARP failed",
        "reduction in the network could not be set up",
        "look at sharp_am and the switches; NCCL_COLLNET_ENABLE=0 goes without",
        r"SHARP (?P<detail>\w+ (?:init|create) ?(?:error)?.*)|sharp_\w+ (?:failed|error)",
        r"Failed to lock SAT tree|Cannot initialize CollNet",
        r"collect_ports_data: .*(?:fail|not valid)",
    ),
    root(
        "host name not resolved",
        "a name of a node means nothing here",
        "correct DNS or /etc/hosts, or use addresses",
        r"Name or service not known|Temporary failure in name resolution|gai error|"
        r"Name does not resolve|No address associated with hostname|nodename nor servname",
        r"(?i:(?:could not|cannot|unable to) resolve) (?:host(?:name)? ?)?(?P<peer>\S*)",
    ),
    root(
        "port in use",
        "another process listens on the port of the rendezvous",
        "end it, or choose another MASTER_PORT",
        r"(?P<detail>port: \d+),.*EADDRINUSE",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    root(
        "host unreachable",
        "there is no route to an address",
        "choose an interface that reaches all nodes; check routes and firewalls",
        r"No route to host|Network is unreachable|EHOSTUNREACH|ENETUNREACH",
    ),
    root(
        "host did not accept a connection",
        "connections to an address time out: a firewall, another interface, or nobody there",
        "check that the address is reachable from this node and that its rank runs",
        r"client socket has (?:timed out|failed).*\((?P<peer>[^,()]+), (?P<detail>\d+)\)",
        r"client socket has timed out after",
        r"socket(?:Start|Poll)Connect.*(?:exceeded|failed|no POLLOUT)",
        r"Software caused connection abort",
        r"exceeded (?:error )?retr(?:y count|ies)|[Cc]onnect\w*.*Connection timed out",
        r"Connect timeout \[",
    ),
    root(
        "no UCX transport",
        "UCX has no transport that reaches a peer",
        "check UCX_TLS and UCX_NET_DEVICES, and that both nodes have the device",
        r"UCX .*(?:no|transport) (?P<detail>'?\w[\w ]*?'?)(?: transport| is not available)",
        r"UCX .*Destination is unreachable",
    ),
    root(
        "rendezvous failed",
        "launchers of the nodes did not meet in time",
        "start all of them; check the endpoint, its port and the firewall",
        r"Rendezvous(?:Timeout|Connection|Closed|State)Error|(?i:rendezvous\b.*timed out)",
    ),
    root(
        "topology not read",
        "NCCL could not use the topology of the node",
        "unset NCCL_TOPO_FILE; see that /sys is mounted in the container",
        r"NCCL WARN (?P<detail>(?:Attribute \w+ of node \w+ not found|Could not find .*(?:path|NET|"
        r"XML)|(?:XML|Topology).*(?:error|fail)|Could not open XML).*)",
    ),
    root(
        "no GPU peer access",
        "GPUs cannot reach each other directly",
        "check ACS, the IOMMU and IPC of the containers; NCCL_P2P_DISABLE=1 goes without",
        r"(?i:peer access is not supported|peer mapping resources exhausted)",
        r"(?i:failed to open (?:CUDA|HIP) IPC|(?:hip|cuda)Ipc\w+ fail)|transport/p2p\.cc.*WARN",
    ),
    root(
        "CUDA error",
        "a CUDA call failed",
        "run with CUDA_LAUNCH_BLOCKING=1",
        r"(?:Cuda|HIP|CUDA) failure (?:\S+:\d+ )?(?P<detail>(?:\d+ )?'[^']+')",
        r"(?:CUDA|HIP) error: (?P<detail>.{3,80})",
        r"(?P<detail>CU(?:BLAS|DNN|SPARSE)_STATUS_(?!SUCCESS)\w+)",
    ),
    root(
        "permission denied",
        "a file or device may not be used",
        "correct its owner or mode",
        r"Permission denied|\[Errno 1\] Operation not permitted",
    ),
)

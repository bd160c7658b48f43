"""Model of a machine's hardware and software, read from a live node or from a recorded tree.

`model.Machine.read(root)` reads everything, `Machine.read(root, ("interfaces", "rdma"))` only the
parts named. Each part is a field of `Machine`; its types and its reader are in the file of that
subject: `netdev` (network interfaces), `rdma` (ports, GIDs, counters), `verbs` (their devices),
`pci`, `nvml` (the accelerators), `cpus`, `numa`, `mounts`, `limits`, `software`. `encode` and
`decode` in `encoding` convert any dataclass to JSON and back. `python -m pytest_mnode.machine
[PART …]` prints a machine as one line of JSON; it imports neither torch nor pytest.

    machine = Machine.read(root)                    # or decode(Machine, line)
    machine.by_name["eth0"], machine.ports, machine.pci.distance(gpu, nic), machine.unread

To add a reading, add one field to `Machine` or to a part, and one line to its reader.

Beside the model: `counters` (bytes and errors between two readings), `process`, `threads`,
`waiting` and `cgroup` (activity and limits of processes), `namespaces`, `pidfd` and `open_files`
(system calls that Python lacks, and the limit of open files). Readers do not judge what they read.
A value that cannot be read is None or absent, never zero; `Machine.unread` says why a part is
missing.
"""

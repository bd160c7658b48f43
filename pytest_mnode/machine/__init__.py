"""What a machine has and does: one model of it, read from a live node or from a recorded tree.

`model.Machine.read(root)` reads everything, `Machine.read(root, ("interfaces", "rdma"))` only the
parts named. Each part is a field of `Machine`; its types and its reader are in the file of that
subject: `netdev` (network interfaces), `rdma` (ports, GIDs, counters), `verbs` (what opens them),
`pci`, `nvml` (the accelerators), `cpus`, `numa`, `mounts`, `limits`, `software`. `encode` and
`decode` in `encoding` convert any dataclass to JSON and back. `python -m pytest_mnode.machine
[PART …]` prints a machine as one line of JSON; it imports neither torch nor pytest.

    machine = Machine.read(root)                    # or decode(Machine, line)
    machine.by_name["eth0"], machine.ports, machine.pci.distance(gpu, nic), machine.unread

A new reading is one field of `Machine` or of a part, and one line in its reader.

Beside the model: `counters` (bytes and errors between two readings), `process`, `threads`,
`waiting` and `cgroup` (what processes do and may do), `namespaces`, `pidfd` and `open_files`
(system calls that Python lacks, and limits of files). Readers decide nothing and know of no test.
What cannot be read is None or absent, never zero; why a part is missing is in `Machine.unread`.
"""

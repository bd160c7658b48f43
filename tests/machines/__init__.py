"""Two virtual machines under QEMU: kernels that nodes do not share, real NUMA nodes, real ibverbs.

They are ordinary nodes, reached by the ssh launcher with a hostfile: no path through the product is
for tests only. `image` makes what they boot (`make machines`, once), `hardware` says what a guest
is built of, `bed` starts guests on a rack, whose links they have. A test takes the fixture
`machines` and runs pytest on the rack's login node, which is the operator's machine:

    def test_it(machines: Machines, tmp_path: Path) -> None:
        machines.guest("node0", "ip link set fab0 mtu 1500")   # a shell script as root
        run = run_pytest(machines, tmp_path, "--mnode-nodes=2", machines.hostfile(tmp_path), …)

with `run_pytest` of tests.engines.inside. Both guests have two NUMA nodes of one CPU each: mgmt0
and a second rail, fab1 (rxe1), beside node 0, and fab0 (40 Mbit/s, RDMA device rxe0) beside node 1.
Both rails share one line. They see this Python, its
environment and this project at the paths they have here, read-only, and no other file. `machines`
is as new in each test: what a test broke on the links is put right, a guest that is off boots
again; what it changed inside a guest it puts right itself, or reboots it: `power_off`, `power_on`.
Other hardware takes guests of its own, which boot in half a minute and more:

    uneven = Hardware(numa=(NumaNode(2, 512), NumaNode(1, 256), …), nics=(Nic("mgmt0", None), …))
    with Machines(1, uneven) as machines: …

Emulation is slow and its speed varies: wait for what is to come, with a long limit. What needs no
ranks is far cheaper than what does: torch takes a minute to import.
"""

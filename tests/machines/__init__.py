"""Two virtual machines under QEMU: separate kernels, real NUMA nodes, real ibverbs.

They are ordinary nodes, reached by the ssh launcher with a hostfile: no code path of the product is
for tests only. `image` makes what they boot (`make machines`, once), `hardware` describes the parts
of a guest, `bed` starts guests on a rack, whose links they use. A test takes the fixture `machines`
and runs pytest on the rack's login node, which is the operator's machine:

    def test_it(machines: Machines, tmp_path: Path) -> None:
        machines.guest("node0", "ip link set fab0 mtu 1500")   # a shell script as root
        run = run_pytest(machines, tmp_path, "--mnode-nodes=2", machines.hostfile(tmp_path), …)

with `run_pytest` of tests.engines.inside. Both guests have two NUMA nodes of one CPU each: mgmt0
and a second rail, fab1 (rxe1), beside node 0, and fab0 (40 Mbit/s, RDMA device rxe0) beside node 1.
Both rails share one link. Guests see this Python, its environment and this project at the same
paths as here, read-only, and no other file. `machines` is reset for each test: links that a test
broke are repaired, and a guest that is off is booted again. Changes inside a guest must be undone
by
the test itself, or by a reboot: `power_off`, `power_on`. Other hardware needs separate guests,
which
boot in half a minute or more:

    uneven = Hardware(numa=(NumaNode(2, 512), NumaNode(1, 256), …), nics=(Nic("mgmt0", None), …))
    with Machines(1, uneven) as machines: …

Emulation is slow and its speed varies: poll for the expected state, with a long limit. Tests
without
ranks are far cheaper than tests with ranks: importing torch takes a minute.
"""

"""The direct path on nodes of the rack: refused jobs, leftovers, and exit statuses."""

from __future__ import annotations

from pathlib import Path

from tests.inner import need_rack, run_pytest, write_files

TESTS = """
    import os, pathlib, time
    import pytest
    from pytest_mnode.errors import UsageError
    from pytest_mnode.criteria.launching.starting import path_of
    from pytest_mnode.criteria.launching.styles import LaunchJob

    def job(*command, **fields):
        page = {"name": "a", "nodes": "all", "accelerators_per_node": 0, "style": "plain"}
        return LaunchJob.model_validate(page | {"command": list(command)} | fields).placed(2, 0)

    def run(cluster, wanted, limit_s=60):
        submission = path_of(cluster).submit(wanted, cluster.nodes)
        try:
            return submission.wait(limit_s)
        finally:
            submission.close()

    def left_on(cluster, word):
        code = (
            "import os, sys\\n"
            "for p in filter(str.isdigit, os.listdir('/proc')):\\n"
            "    try: line = open(f'/proc/{p}/cmdline').read().split('\\\\0')\\n"
            "    except OSError: continue\\n"
            "    if 'sleep' in line and sys.argv[1] in line: print(p)\\n"
            "print(*[n for n in os.listdir('/dev/shm') if n.startswith('mnode-home')])\\n"
        )
        return [r.stdout.strip() for r in cluster.run(["python3", "-S", "-c", code, word])]

    def test_no_images(cluster):
        with pytest.raises(UsageError, match="job a: image x/y: the launcher .* runs no images"):
            path_of(cluster).submit(job("true", image="x/y"), cluster.nodes)

    def test_once_a_node_with_the_jobs_variables(cluster):
        show = 'echo "$(hostname) $OWN $GLOO_SOCKET_IFNAME [$MNODE_CANARY$MNODE_JOB]"'
        done = run(cluster, job("sh", "-c", show, env={"OWN": "1"}))
        assert done.codes == {"node0": 0, "node1": 0}
        assert done.hosts == {"node0": "node0", "node1": "node1"}
        for node in cluster.nodes:
            assert f"{node} 1 fab0 []" in done.output[node]
        assert left_on(cluster, "none") == ["", ""]

    def test_the_jobs_own_interface_wins(cluster):
        show = 'echo "[$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME]"'
        done = run(cluster, job("sh", "-c", show, env={"GLOO_SOCKET_IFNAME": "mgmt0"}))
        assert "[mgmt0 =fab0]" in done.output["node1"]

    def test_at_its_limit_it_is_ended_with_all_below(cluster):
        hidden = "setsid sleep 3141 & trap '' TERM; sleep 3141; sleep 3141"
        done = run(cluster, job("sh", "-c", hidden), limit_s=2)
        assert done.codes == {"node0": None, "node1": None}
        assert left_on(cluster, "3141") == ["", ""]

    def test_closed_before_its_end(cluster):
        submission = path_of(cluster).submit(job("sleep", "3142"), cluster.nodes)
        end = time.monotonic() + 30
        while not all(left_on(cluster, "3142")):
            assert time.monotonic() < end
        submission.close()
        submission.close()
        assert left_on(cluster, "3142") == ["", ""]

    def test_a_command_that_is_not_there(cluster):
        done = run(cluster, job("/no/such/program"))
        assert done.codes == {"node0": 127, "node1": 127}
        assert "node1: cannot run /no/such/program" in done.output["node1"]
"""


def test_direct_path(tmp_path: Path) -> None:
    need_rack()
    write_files(tmp_path, test_it=TESTS)
    inner = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=rack", "test_it.py")
    assert [*inner.outcomes().values()] == ["passed"] * 6, inner.output

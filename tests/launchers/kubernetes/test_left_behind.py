"""What a run in Kubernetes leaves behind if it is killed: no keys, and objects with an owner."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from pytest_mnode.launchers.kubernetes import api as module
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.bridge import KubernetesBridge
from pytest_mnode.launchers.kubernetes.template import read_manifest
from pytest_mnode.options import Settings
from tests.inner import need_program
from tests.launchers.kubernetes.given import settings, use_kubeconfig


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig that holds the client's key itself; the empty directory of temporary files."""
    need_program("openssl", "openssl")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-subj", "/CN=ada"]
    made += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]  # many times faster than RSA
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)

    def text(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    server = {"server": "https://127.0.0.1:1", "certificate-authority-data": text(certificate)}
    user = {"client-key-data": text(key), "client-certificate-data": text(certificate)}
    use_kubeconfig(monkeypatch, tmp_path, server, user)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


def test_no_key_stays_in_a_file(config: Path) -> None:
    for _ in range(2):  # the client remembers files by their content
        api = Api()
        assert api.tls is not None
        assert list(config.iterdir()) == []
        api.headers()
    assert list(config.iterdir()) == []


def test_a_renewed_key_does_not_stay_either(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that renews credentials may give a key too, which the client writes to a file."""
    api = Api()

    def renewed(_: object) -> dict[str, object]:
        made = Path(api._files)
        made.mkdir()
        (made / "key").touch()
        return {}

    monkeypatch.setattr(client.Configuration, "auth_settings", renewed)
    api.headers()
    assert list(config.iterdir()) == []


@pytest.fixture
def _in_a_pod(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t")
    (account / "namespace").write_text("team\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("MNODE_POD", "mnode-77")
    monkeypatch.setattr(module, "IN_POD", account)


@pytest.mark.usefixtures("_in_a_pod")
@pytest.mark.parametrize(
    ("namespace", "owned"), [("team", True), ("elsewhere", False), ("denied", False)]
)
def test_objects_are_owned_by_the_pod_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, owned: bool
) -> None:
    """An owner is of the same namespace."""
    made: list[dict[str, Any]] = []

    def request(self: Api, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if method == "GET":
            assert path == "/api/v1/namespaces/team/pods/mnode-77"
            if namespace == "denied":
                raise ApiError(403, "no")
            return {"metadata": {"uid": "u-1"}}
        made.append(body)
        return {"metadata": {"name": body["metadata"]["name"], "uid": "u-2"}}

    monkeypatch.setattr(Api, "request", request)
    of = "team" if namespace == "denied" else namespace
    bridge = KubernetesBridge(settings(tmp_path, context="c", namespace=of))
    bridge.prepare()
    assert bridge.cleanup is not None
    bridge.cleanup.close(done=True)
    owners = made[0]["metadata"].get("ownerReferences")
    pod_of_run = {"apiVersion": "v1", "kind": "Pod", "name": "mnode-77", "uid": "u-1"}
    assert owners == ([pod_of_run] if owned else None)


@pytest.mark.usefixtures("_in_a_pod")
def test_a_pod_on_its_nodes_network_has_its_own_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(self: Api, method: str, path: str) -> Any:
        assert (method, path) == ("GET", "/api/v1/namespaces/team/pods/mnode-77")
        return {"spec": {"containers": [{"name": "n", "image": "own:1"}]}}

    monkeypatch.setattr(Api, "request", request)
    made = read_manifest(Settings(k8s_context="c", k8s_namespace="team"), 0)
    assert made["template"]["spec"]["containers"] == [{"name": "node", "image": "own:1"}]

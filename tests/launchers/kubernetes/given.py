"""Values that tests of the launcher give it: a kubeconfig, and the settings of a bridge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import kube_config

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.launchers.kubernetes.api import Api
from pytest_mnode.launchers.kubernetes.bridge import BridgeSettings

LEFT = asdict(KubernetesBackend().leftovers("r", "", "", "batch/jobs"))
MANIFEST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {"containers": [{"name": "main", "image": "i"}]},
}


def write_kubeconfig(
    directory: Path, cluster: Mapping[str, str], user: Mapping[str, str] | None = None
) -> Path:
    """A kubeconfig with one context."""
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user or {}}],
        "current-context": "c",
    }
    path = directory / "config"
    path.write_text(json.dumps(config))
    return path


def use_kubeconfig(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    cluster: Mapping[str, str],
    user: Mapping[str, str] | None = None,
) -> None:
    path = write_kubeconfig(directory, cluster, user)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))


def settings(scratch: Path, **changes: Any) -> BridgeSettings:
    """Settings for one pod."""
    plain = BridgeSettings("", "", MANIFEST, "r", 1, [], 9.0, "", str(scratch), LEFT)
    return replace(plain, **changes)


def plain_api(port: int) -> Api:
    """Access to a server without TLS at a port of this machine, by no kubeconfig."""
    made: Any = Api.__new__(Api)
    host = f"http://127.0.0.1:{port}"
    made._settings = SimpleNamespace(host=host, auth_settings=dict)
    made.namespace, made.tls, made.tls_name, made.proxy = "default", None, None, None
    return made  # type: ignore[no-any-return]

"""The way to the API server that a kubeconfig names: its proxy, and the name of its certificate."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.streams import connected
from tests.launchers.kubernetes.given import use_kubeconfig

PATH = "/api/v1/namespaces/default/pods"
LIMIT_S = 30.0
UNKNOWN = {"server": "https://api.invalid:6443"}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Server:
    """Keeps how each connection begins, or the name that its TLS asks for, and ends it."""

    def __init__(self, *, tls: bool = False) -> None:
        self.heard: list[str | None] = []
        self.credentials: list[str] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._tls:
            self._tls.sni_callback = lambda _, name, __: self.heard.append(name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(LIMIT_S)
                try:
                    if self._tls:
                        self._tls.wrap_socket(connection, server_side=True)
                    with connection.makefile() as lines:  # it would keep the connection open
                        self.heard.append(lines.readline().rpartition(" ")[0])
                        for line in takewhile(str.strip, lines):
                            name, _, value = line.partition(": ")
                            if name.lower() == "proxy-authorization":
                                self.credentials.append(value.strip())
                except OSError:  # it has no certificate
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)


@pytest.fixture
def proxy() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(tls=True)
    yield made
    made.close()


def both_ways(monkeypatch: pytest.MonkeyPatch, directory: Path, cluster: dict[str, str]) -> None:
    """One request, and one stream, to the server of a kubeconfig; both fail."""
    use_kubeconfig(monkeypatch, directory, cluster)
    api = Api()
    with pytest.raises(ApiError):
        api.request("GET", PATH)
    with pytest.raises(ApiError):
        asyncio.run(asyncio.wait_for(connected(api, PATH, ()), LIMIT_S))


def test_requests_and_streams_use_the_proxy_of_the_kubeconfig_and_give_it_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Server
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "api.invalid")
    url = f"http://ada:s%403@{proxy.address}"
    both_ways(monkeypatch, tmp_path, UNKNOWN | {"proxy-url": url})
    assert proxy.heard == ["CONNECT api.invalid:6443"] * 2
    assert proxy.credentials == [f"Basic {base64.b64encode(b'ada:s@3').decode()}"] * 2


@pytest.mark.parametrize("passed_by", [False, True])
def test_requests_and_streams_use_the_proxy_of_the_environment_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proxy: Server,
    server: Server,
    passed_by: bool,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if passed_by else "other.invalid")
    both_ways(monkeypatch, tmp_path, {"server": f"https://{server.address}"})
    assert proxy.heard == ([] if passed_by else [f"CONNECT {server.address}"] * 2)


def test_the_servers_certificate_has_the_name_of_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    given = {"server": f"https://{server.address}", "tls-server-name": "api.lab.example"}
    both_ways(monkeypatch, tmp_path, given)
    assert server.heard == ["api.lab.example"] * 2


def test_a_proxy_that_needs_other_packages_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kubeconfig(monkeypatch, tmp_path, UNKNOWN | {"proxy-url": "socks5://a:s3@127.0.0.1:1080"})
    with pytest.raises(UsageError, match=r"socks5://127.0.0.1:1080 needs .* PySocks and python"):
        Api()

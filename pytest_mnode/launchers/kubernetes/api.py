"""The API server of a context, or of the cluster that this process runs in.

The official client reads the configuration: contexts, tokens, certificates, credential plugins.
Objects are the server's own JSON, whatever its version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode
from urllib.request import getproxies

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.limits import Limits

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S = 20.0
_MOST_WARNINGS = 3
_REFUSED = re.compile(r"\bis forbidden\b|\bdenied the request\b|\bis invalid\b")
"""Refusals of pods that a controller tries to create: quota, LimitRange, PodSecurity, webhooks."""
_JOB_FAILED = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "PodFailurePolicy")
"""Reasons of a Job that creates no pods any more."""
WATCH_S = 300.0
"""Time after which the server ends a watch, which is then started again."""
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A connection to a server that vanished ends within 20 s."""
INSTALL = "pip install 'pytest-mnode[kubernetes]'"


def in_pod() -> bool:
    """Whether this process is in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (IN_POD / "token").exists()


def own_pod() -> str:
    """Name of the pod that this process is in: its host name, unless it is on its node's network;
    then MNODE_POD names it."""
    return os.environ.get("MNODE_POD") or socket.gethostname()


class ApiError(ClusterError):
    """A refusal by the API server, with its reason. status: of HTTP; 0 if it was not reached."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Api:
    """Access to one API server. Thread-safe. namespace: given, else the context's or this pod's."""

    connect_s = Limits().connect_s
    """How long the connection of a stream may take."""
    _files = ""
    """Directory of files with keys, which is there for moments."""

    def __init__(
        self, context: str = "", namespace: str = "", scratch: str = "", connect_s: float = 0.0
    ) -> None:
        """scratch: a directory for keys and certificates, which the client reads from files while
        this starts. connect_s: if not 0, see above. Raises UsageError."""
        try:
            import urllib3
            from kubernetes import client, config
        except ImportError as error:
            raise UsageError(
                f"Kubernetes needs the Python package {error.name}: {INSTALL}"
            ) from None
        self.connect_s = connect_s or self.connect_s
        self._files = tempfile.mkdtemp(prefix="mnode-kube-", dir=scratch or None)
        try:
            self._read(context, client, config)
            self.tls = self._tls()
            """None if the server has no TLS; made once, because that reads all authorities."""
        finally:
            self._remove_files()
        self.namespace = namespace or self._given_namespace
        self.tls_name: str | None = (self._settings.tls_server_name or None) if self.tls else None
        """The name that the server's certificate has; None for the one in its URL."""
        self.proxy = self._proxy()
        """URL of the proxy to the server, for requests and for streams; None without one."""
        options: dict[str, Any] = {"ssl_context": self.tls} if self.tls else {}
        options |= {"server_hostname": self.tls_name} if self.tls_name else {}
        defaults = urllib3.connection.HTTPConnection.default_socket_options
        options["socket_options"] = [*defaults, *KEEPALIVE]
        manager = urllib3.PoolManager if self.proxy is None else _through(self.proxy)
        self._pool = manager(maxsize=4, retries=False, **options)

    def _read(self, context: str, client: Any, config: Any) -> None:
        """Read the configuration. Raises UsageError."""
        self._settings = client.Configuration()
        self._settings.retries = 0
        try:
            if context or not in_pod():
                config.load_kube_config(
                    context=context or None,
                    client_configuration=self._settings,
                    temp_file_path=self._files,
                )
                self._given_namespace = _namespace_of(context)
            else:
                config.load_incluster_config(client_configuration=self._settings)
                self._given_namespace = (IN_POD / "namespace").read_text().strip()
        except config.ConfigException as error:
            named = f"--mnode-k8s-context={context}: " if context else ""
            raise UsageError(f"{named}no usable Kubernetes configuration: {_line(error)}") from None

    def _remove_files(self) -> None:
        """Remove the keys that the client wrote into files, and make it forget these."""
        if not self._files:
            return
        from kubernetes.config import kube_config

        known: dict[str, str] = getattr(kube_config, "_temp_files", {})
        for content, name in list(known.items()):
            if name.startswith(f"{self._files}/"):
                del known[content]
        shutil.rmtree(self._files, ignore_errors=True)

    @property
    def host(self) -> str:
        """URL of the server, such as https://10.0.0.1:6443."""
        return str(self._settings.host).rstrip("/")

    def _tls(self) -> ssl.SSLContext | None:
        if not self.host.startswith("https"):
            return None
        found = ssl.create_default_context(cafile=self._settings.ssl_ca_cert or None)
        # Certificate authorities of clusters often lack the extensions that strict checks require.
        found.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if not self._settings.verify_ssl:
            found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
        if self._settings.cert_file:
            found.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        return found

    def _proxy(self) -> str | None:
        """`proxy-url` of the kubeconfig, else that of the environment, as kubectl uses them."""
        from kubernetes.client.rest import should_bypass_proxies

        found = self._settings.proxy
        if not found:
            return None
        by_env = found in getproxies().values()  # NO_PROXY is for these only
        passed_by = by_env and should_bypass_proxies(self.host, self._settings.no_proxy or "")
        return None if passed_by else str(found)

    def headers(self) -> dict[str, str]:
        """Headers with credentials, which are renewed when they expire."""
        settings: Mapping[str, Any] = self._settings.auth_settings()
        self._remove_files()  # a plugin that renews credentials may give a key too
        return {
            setting["key"]: setting["value"]
            for setting in settings.values()
            if setting["in"] == "header" and setting["value"]
        }

    def owners(self) -> list[dict[str, str]]:
        """Owner references for objects of this run: the pod in which it runs, if it is in one.

        Kubernetes deletes the objects with their owner, also if this process is killed.
        """
        own = IN_POD / "namespace"
        if not in_pod() or not own.exists() or own.read_text().strip() != self.namespace:
            return []
        name = own_pod()
        try:
            uid = str(self.request("GET", self.path("pods", name=name))["metadata"]["uid"])
        except (ApiError, KeyError):
            return []
        return [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]

    def path(self, kind: str, api: str = "v1", name: str = "", more: str = "") -> str:
        """Path of objects in the namespace: `kind` in plural, api as "batch/v1"."""
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        tail = "".join(f"/{part}" for part in (name, more) if part)
        return f"{root}/namespaces/{quote(self.namespace)}/{kind}{tail}"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        limit_s: float = REQUEST_S,
    ) -> Any:
        """The server's answer, decoded. Raises ApiError with its reason."""
        with self._send(method, path, body, query, limit_s) as response:
            try:
                return json.loads(response.data)
            except _broken_off() as error:
                raise ApiError(
                    0, f"{self.host}: its answer is incomplete: {_line(error)}"
                ) from None

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """Events as (type, object), until the server ends the watch, or the connection breaks.

        query: includes the resourceVersion to start from. Raises ApiError.
        """
        watched = {**query, "watch": "true", "timeoutSeconds": f"{WATCH_S:.0f}"}
        with self._send("GET", path, None, watched, WATCH_S + REQUEST_S) as response:
            try:
                for line in _lines(response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 0), _message(event["object"]))
                    yield event["type"], event["object"]
            except _broken_off():
                return

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        limit_s: float,
    ) -> Any:
        import urllib3

        url = f"{self.host}{path}{'?' * bool(query)}{urlencode(query or {})}"
        headers = {"Accept": "application/json", **self.headers()}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        limits = urllib3.Timeout(connect=min(REQUEST_S, limit_s), read=limit_s)
        try:
            response = self._pool.request(
                method, url, body=data, headers=headers, timeout=limits, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{self.host} was not reached: {_line(error)}") from None
        if response.status >= 400:
            with response:
                try:
                    reason = response.data
                except _broken_off():
                    reason = b""
                raise ApiError(response.status, refusal(response.status, reason))
        return response


@dataclass(frozen=True, slots=True)
class Warnings:
    """The last warnings about an object. final: whether waiting does not mend one of them."""

    texts: tuple[str, ...] = ()
    final: bool = False


def warnings_about(api: Api, name: str) -> Warnings:
    """Warnings about an object, such as a quota that is used up, and about objects made for it: the
    Job of a JobSet has its name and more."""
    found = _events(api, "type=Warning,involvedObject.kind!=Pod")
    ours = [item for item in found if name in (item["involvedObject"].get("name") or "")]
    texts = tuple(dict.fromkeys(_text(item) for item in ours))
    return Warnings(texts[-_MOST_WARNINGS:], any(_is_final(item) for item in ours))


def _is_final(event: Mapping[str, Any]) -> bool:
    reason = event.get("reason")
    refused = reason == "FailedCreate" and _REFUSED.search(_text(event)) is not None
    return refused or reason in _JOB_FAILED


def pod_events(api: Api, names: Container[str]) -> dict[str, PodEvent]:
    """The last event of each of these pods, by its name."""
    last: dict[str, PodEvent] = {}
    for item in sorted(_events(api, "involvedObject.kind=Pod"), key=_time):
        if (name := item["involvedObject"].get("name")) in names:
            last[name] = PodEvent(str(item.get("reason") or ""), _text(item))
    return last


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event about a pod: the kubelet's or scheduler's reason, such as Pulling, and its text."""

    reason: str
    text: str


def _events(api: Api, which: str) -> list[Mapping[str, Any]]:
    try:
        found = api.request("GET", api.path("events"), query={"fieldSelector": which})["items"]
    except ApiError:  # reading events may not be allowed
        return []
    return list(found)


def _text(event: Mapping[str, Any]) -> str:
    return " ".join(str(event.get("message", "")).split())


def _time(event: Mapping[str, Any]) -> str:
    """Time of the last occurrence, as ISO text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _broken_off() -> tuple[type[Exception], ...]:
    """Exceptions raised if a reply breaks off: its data ends early, or its JSON is incomplete."""
    from urllib3.exceptions import HTTPError

    return HTTPError, OSError, ValueError


def refusal(status: int, body: bytes) -> str:
    """The API server's reason for a refusal, in one line."""
    try:
        return _message(json.loads(body))
    except (ValueError, AttributeError):
        text = " ".join(body.decode(errors="replace").split())
        return f"HTTP status {status}{': ' * bool(text)}{text[:300]}"


def _message(status: Mapping[str, Any]) -> str:
    return " ".join(str(status.get("message") or status.get("reason") or "no reason").split())


def _lines(response: Any) -> Iterator[bytes]:
    data = b""
    for chunk in response.stream(None):
        *whole, data = (data + chunk).split(b"\n")
        yield from (line for line in whole if line)


def _through(proxy: str) -> Any:
    """Maker of a connection pool through a proxy. Raises UsageError."""
    import urllib3

    url = urllib3.util.parse_url(proxy)
    if not proxy.lower().startswith("socks"):
        headers = urllib3.make_headers(proxy_basic_auth=unquote(url.auth)) if url.auth else None
        return partial(urllib3.ProxyManager, proxy, proxy_headers=headers)
    if any(find_spec(package) is None for package in ("socks", "python_socks")):
        raise UsageError(
            f"Kubernetes: proxy {url._replace(auth=None)} needs the Python packages PySocks and "
            "python-socks: pip install PySocks 'python-socks[asyncio]'"
        )
    from urllib3.contrib.socks import SOCKSProxyManager

    return partial(SOCKSProxyManager, proxy)


def _namespace_of(context: str) -> str:
    from kubernetes import config

    contexts, active = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


def _line(error: BaseException) -> str:
    """The error in one line; the inner error if urllib3 wraps one."""
    error = next((one for one in error.args if isinstance(one, BaseException)), error)
    return " ".join(str(error).split()) or type(error).__name__

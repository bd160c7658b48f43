"""The environment of programs on nodes: one rule for all launchers.

1. A node's own variables: sshd's and PAM's, those of a step with its TaskProlog, or those of a
   container. On this machine (rack, local) a job starts from the shell that started pytest, and has
   its variables, so nodes have them too: no test can tell `FOO=1 pytest` from a login's FOO. What
   looks like a secret stays out, and on the rack what holds for this machine alone.
2. What the user set for the run replaces them: --mnode-env, `env` of a job or of a command, and
   changes of os.environ since the run began, except in ranks, whose fork server began with the run,
   and in jobs that a scheduler starts.
3. Of the other variables of pytest's environment, those of PASSED follow where a node sets none.

HOME, USER, PATH and TMPDIR are the node's, and all that PASSED does not name, such as the tokens of
a CI job, stays here. Only the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_mnode.launchers.remote.command_process import OF_A_TASK, OF_THE_JOB

OF_THE_MACHINE = ("HOSTNAME",)
"""A scheduler may export the first node's HOSTNAME to a batch script."""
PASSED = (
    *("NCCL_", "RCCL_", "MSCCL", "GLOO_", "UCX_", "UCC_", "FI_", "SHARP_", "OMPI_MCA_", "TP_"),
    *("TORCH", "PYTORCH_", "CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_", "NVTE_", "NVSHMEM_", "TRITON_"),
    *("HIP_", "HSA_", "ROC", "GPU_", "MIOPEN_", "ZE_", "CCL_", "HCCL_", "HABANA_", "ASCEND_"),
    *("XLA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "GLIBC_"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "VIRTUAL_ENV", "CONDA_", "HF_", "TRANSFORMERS_"),
    *("TOKENIZERS_", "DS_", "DEEPSPEED_", "MEGATRON_", "MNODE_", "PYTEST_", "HYPOTHESIS_", "COV"),
    *("LC_", "LANG", "TZ", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "XDG_CACHE_HOME"),
)
"""Prefixes of the variables that configure communication, accelerators, threads and tests."""
_WHOLE = ("CI", "GITHUB_ACTIONS")
"""Names that tests are skipped by."""
OF_THE_NETWORK = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "TP_SOCKET_IFNAME"),
    *("NCCL_IB_HCA", "UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_UDP_IFACE"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"),
    *("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude"),
)
"""Variables that name network devices of a machine, which nodes with networks of their own lack."""
OF_THE_SESSION = (
    *("SSH_", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS"),
    *("XDG_RUNTIME_DIR", "XDG_SESSION_", "XDG_SEAT", "XDG_VTNR"),
)
"""Prefixes of variables of a login, which hold for its machine only. Other XDG_ variables name
directories of the user's choice (XDG_CACHE_HOME)."""
_SECRET_WORDS = {
    *("TOKEN", "TOKENS", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS", "CREDS", "KEY", "KEYS"),
    *("PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASS", "PWD", "APIKEY", "JWT", "AUTH"),
}
_SECRET_ENDS = ("PASSWORD", "PASSWD", "SSHPASS", "TOKEN", "SECRET", "APIKEY")
_NO_SECRETS = ("PWD", "OLDPWD", "SSH_AUTH_SOCK", "GPG_KEY")
"""The last one is a public key: images of Python set it."""
SET, DEFAULTS = "MNODE_ENV_SET", "MNODE_ENV_DEFAULTS"
"""Variables of a local command that tell the bridge the names of two kinds of others: those that
replace the node's own whatever their value, and those that count only where nothing else does."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret: by a word of its name, or a password in a URL."""
    upper = name.upper()
    if name in _NO_SECRETS:
        return False
    if upper.endswith(_SECRET_ENDS) or not _SECRET_WORDS.isdisjoint(upper.split("_")):
        return True
    user, at, _ = value.partition("://")[2].partition("/")[0].rpartition("@")
    return bool(at) and ":" in user


def is_passed(name: str, value: str) -> bool:
    """Whether a variable of pytest's environment is passed to a node that does not set it."""
    return (name in _WHOLE or name.startswith(PASSED)) and not is_secret(name, value)


def node_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of local commands that lead to nodes, from `environ`; from os.environ if None.

    It has no secrets, and nothing of the task of a job that this process may be.
    """
    whole = os.environ if environ is None else environ
    return {
        name: value
        for name, value in whole.items()
        if name in OF_THE_JOB
        or not (name in OF_THE_MACHINE or name.startswith(OF_A_TASK) or is_secret(name, value))
    }


@dataclass(frozen=True, slots=True)
class RunEnv:
    """The environment of one run's programs.

    given: variables of --mnode-env. remote: whether nodes are other machines, with variables of
    their own. own_network: whether nodes have network devices of their own on this machine.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False
    own_network: bool = False

    @classmethod
    def of_launcher(cls, name: str, given: Mapping[str, str]) -> RunEnv:
        return cls(given, remote=name not in ("rack", "local"), own_network=name == "rack")

    def command(
        self, env: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Environment of a launcher's local command, which runs a program on a node.

        env: variables of this program. defaults: variables that it gets where neither the node
        nor the user sets them.
        """
        base, changed = self._base(), {**self.given, **(env or {})}
        unset = {
            name: value
            for name, value in (defaults or {}).items()
            if name not in changed and not self._counts(name, base)
        }
        made = {**base, **unset, **changed}
        if self.remote:
            made |= {SET: ",".join(changed), DEFAULTS: ",".join(unset)}
        return made

    def header(self) -> str:
        """The rule as it applies to this run, in one line."""
        parts = [f"set for this run: {_names(self.given)}"] if self.given else []
        if self.remote:
            rest = [n for n, v in node_env().items() if is_passed(n, v) and n not in self.given]
            parts += [f"from pytest's where a node sets none: {_names(rest)}"] if rest else []
            return "; ".join(("each node's own", *parts))
        base = self._base()
        lacks = [n for n in os.environ if n not in {*base, *self.given}]
        elsewhere = [name for name in lacks if self._is_elsewhere(name)]
        secrets = [n for n in lacks if n not in elsewhere and is_secret(n, os.environ[n])]
        if secrets:
            parts.append(f"without {_names(secrets)} (may be secrets: --mnode-env passes them)")
        if elsewhere:
            parts.append(f"without {_names(elsewhere)} (devices and login of this machine)")
        return "; ".join(("pytest's own", *parts))

    def _base(self) -> dict[str, str]:
        return {n: value for n, value in node_env().items() if not self._is_elsewhere(n)}

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a variable holds for this machine, and not for its nodes."""
        return self.own_network and (name in OF_THE_NETWORK or name.startswith(OF_THE_SESSION))

    def _counts(self, name: str, base: Mapping[str, str]) -> bool:
        """Whether a node gets this variable of pytest's environment."""
        return name in base and (not self.remote or is_passed(name, base[name]))


def _names(names: Mapping[str, str] | list[str]) -> str:
    every, most = sorted(names), 8
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])

"""The user's options for Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_mnode.options import Settings


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """The --mnode-k8s-* options. context, namespace, image: "" if not given. template: file of a
    manifest. wait_s: time in which all pods must run."""

    context: str = ""
    namespace: str = ""
    template: Path | None = None
    image: str = ""
    wait_s: float = 300.0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.k8s_context,
            settings.k8s_namespace,
            settings.k8s_template,
            settings.k8s_image,
            settings.k8s_wait_s,
        )

    @property
    def given(self) -> str | None:
        """The first given option that selects Kubernetes; None if there is none."""
        named = {"context": self.context, "namespace": self.namespace, "image": self.image,
                 "template": self.template}  # fmt: skip
        return next((f"--mnode-k8s-{n}={value}" for n, value in named.items() if value), None)

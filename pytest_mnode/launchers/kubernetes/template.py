"""The user's manifest of pods, or one made from the spec."""

from __future__ import annotations

from typing import Any

import yaml

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.kubernetes.api import Api, ApiError, in_pod, own_pod
from pytest_mnode.launchers.kubernetes.manifest import default_template, main_of
from pytest_mnode.options import Settings

_TEXTS = ("labels", "annotations", "nodeSelector", "matchLabels")


def read_manifest(settings: Settings, gpus: int) -> dict[str, Any]:
    """The object of --mnode-k8s-template; without one, a pod template with `gpus` GPUs.

    Raises UsageError.
    """
    path = settings.k8s_template
    if path is None:
        image = settings.k8s_image or _own_image(settings)
        return default_template(image, {"nvidia.com/gpu": str(gpus)} if gpus else {})
    where = f"--mnode-k8s-template={path}"
    try:
        documents = [d for d in yaml.safe_load_all(path.read_text()) if d is not None]
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UsageError(f"{where}: it has {len(documents)} objects; accepted: one")
    found: dict[str, Any] = _without_nulls(documents[0])
    return found


def _without_nulls(found: Any, key: str = "") -> Any:
    """A part of a manifest without empty keys, as the API server reads it; in a map of texts, such
    as labels, an empty value is an empty text."""
    if isinstance(found, list):
        return [_without_nulls(one) for one in found]
    if not isinstance(found, dict):
        return found
    if key in _TEXTS:
        return {name: "" if text is None else text for name, text in found.items()}
    return {k: _without_nulls(value, k) for k, value in found.items() if value is not None}


def _own_image(settings: Settings) -> str:
    """The image of the pod that this process is in. Raises UsageError."""
    remedy = "give --mnode-k8s-template=FILE, or --mnode-k8s-image=IMAGE"
    if not in_pod():
        raise UsageError(f"no image for the pods: {remedy}")
    try:
        api = Api(settings.k8s_context, settings.k8s_namespace)
        pod = api.request("GET", api.path("pods", name=own_pod()))
    except ApiError as error:
        raise UsageError(f"cannot read the image of this pod: {error}; {remedy}") from None
    return str(main_of(pod)["image"])

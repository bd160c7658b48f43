"""What a PCI function is, by its class and who made it. Pure.

Source: the PCI ID repository, pci.ids.
"""

from __future__ import annotations

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
MAKERS = {
    NVIDIA: "NVIDIA",
    AMD: "AMD",
    INTEL: "Intel",
    "1da3": "Habana",
    "1d0f": "Amazon",
    "1ae0": "Google",
    "19e5": "Huawei",
    "17cb": "Qualcomm",
    "1e52": "Tenstorrent",
    "15b3": "Mellanox",
    "14e4": "Broadcom",
    "1af4": "virtio",
    "1b36": "QEMU",
}
_VGA, _DISPLAY, _3D, _PROCESSING = "0300", "0380", "0302", "1200"
_MAKERS_OF_ACCELERATORS = (NVIDIA, AMD, "1da3", "1d0f", "1ae0", "19e5", "17cb", "1e52")
"""Whose processing accelerators train models: those of others are FPGAs, or NPUs of a CPU."""
_DISPLAY_BAR_BYTES = 1 << 30
"""More than a board's display chip or a GPU that is built into a CPU shows of its memory."""


def computes(
    kind: str | None,
    vendor: str | None,
    *,
    behind_bridge: bool,
    boots_display: bool,
    largest_bar_bytes: int,
) -> bool:
    """Whether a function of this class (such as 0302) and vendor is there for ranks to compute on.

    3D controllers and processing accelerators are, and GPUs with a display; a server's own display
    controller is not, nor what is built into a CPU.
    """
    if kind == _PROCESSING:
        return vendor in _MAKERS_OF_ACCELERATORS
    if kind not in (_VGA, _DISPLAY):
        return kind == _3D
    if vendor == INTEL:
        return behind_bridge
    if vendor == AMD and kind == _VGA:
        return largest_bar_bytes > _DISPLAY_BAR_BYTES and not boots_display
    return vendor in (NVIDIA, AMD)

"""What CPUID says about the time stamp counter; empty if there is no CPUID."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

#: A leaf and subleaf to EAX, EBX, ECX and EDX; None if there is no such leaf.
Reader = Callable[[int, int], tuple[int, int, int, int] | None]

_HYPERVISOR_NAMES = {
    "KVMKVMKVM": "KVM",
    "Linux KVM Hv": "KVM",
    "VMwareVMware": "VMware",
    "Microsoft Hv": "Hyper-V",
    "XenVMMXenVMM": "Xen",
    "TCGTCGTCGTCG": "QEMU without KVM",
    "bhyve bhyve ": "bhyve",
    "ACRNACRNACRN": "ACRN",
}


@dataclass(frozen=True)
class Leaves:
    """The facts; frequencies in Hz as stated, None if the leaf is absent or empty."""

    there: bool
    invariant: bool = False
    tsc_adjust: bool = False
    has_rdtscp: bool = False
    hypervisor: str | None = None
    crystal_hz: int | None = None
    """Leaf 0x15: crystal times ratio."""
    nominal_hz: int | None = None
    """Leaf 0x16: the processor's base frequency, in whole MHz."""
    hypervisor_hz: int | None = None
    """Leaf 0x40000010: what the hypervisor states, in whole kHz."""


def read(cpuid: Reader) -> Leaves:
    """Decode the leaves that matter here (Intel SDM vol. 2A, CPUID; Linux, Documentation/virt)."""
    basic = cpuid(1, 0)
    if basic is None:
        return Leaves(there=False)
    features = cpuid(7, 0)
    extended = cpuid(0x80000001, 0)
    power = cpuid(0x80000007, 0)
    name = _hypervisor(cpuid) if basic[2] >> 31 & 1 else None
    return Leaves(
        there=True,
        invariant=bool(power and power[3] >> 8 & 1),
        tsc_adjust=bool(features and features[1] >> 1 & 1),
        has_rdtscp=bool(extended and extended[3] >> 27 & 1),
        hypervisor=name,
        crystal_hz=_crystal(cpuid(0x15, 0)),
        nominal_hz=_nominal(cpuid(0x16, 0)),
        hypervisor_hz=_stated(cpuid) if name else None,
    )


def _hypervisor(cpuid: Reader) -> str:
    leaf = cpuid(0x40000000, 0)
    if leaf is None:
        return "unknown hypervisor"
    raw = struct.pack("<III", *leaf[1:]).rstrip(b"\0").decode("ascii", "replace")
    return _HYPERVISOR_NAMES.get(raw, raw if raw.isprintable() and raw else "unknown hypervisor")


def _stated(cpuid: Reader) -> int | None:
    """Beyond the hypervisor's highest leaf CPUID returns anything: look there first."""
    highest = cpuid(0x40000000, 0)
    if highest is None or highest[0] < 0x40000010:
        return None
    leaf = cpuid(0x40000010, 0)
    return leaf[0] * 1000 if leaf and leaf[0] else None


def _crystal(leaf: tuple[int, int, int, int] | None) -> int | None:
    """EBX / EAX times the crystal's ECX Hz; without the last the leaf says too little."""
    if leaf is None or not all(leaf[:3]):
        return None
    return leaf[2] * leaf[1] // leaf[0]


def _nominal(leaf: tuple[int, int, int, int] | None) -> int | None:
    return (leaf[0] & 0xFFFF) * 1_000_000 or None if leaf else None

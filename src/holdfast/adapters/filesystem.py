"""What kind of file system a folder lies on, as far as it matters to what is stored there."""

from __future__ import annotations

import ctypes
import os

NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9p",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0xAAD7AAEA: "PanFS",
    0x786F4256: "VirtualBox shared folder",
}


def network_name(magic: int) -> str | None:
    """The file system's name if several machines may share it: there, shared memory and sometimes locks do not work."""
    return NETWORK.get(magic & 0xFFFFFFFF)


def magic_of(path: str | os.PathLike[str]) -> int:
    """f_type of statfs(2); 0 if nobody can tell. os.statvfs leaves it out."""
    buffer = ctypes.create_string_buffer(512)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.statfs(os.fsencode(path), buffer) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return int(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long))[0]) & 0xFFFFFFFF

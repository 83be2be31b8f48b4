"""Make a process execute one system call it did not ask for, through ptrace. Linux on x86-64.

The main thread is stopped wherever it is, computing or blocked in a system call; its next instruction becomes
`syscall`, its registers the arguments. The process itself takes no part in it, nor does any code of ours inside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import time
from collections.abc import Iterator

from holdfast.adapters import proc
from holdfast.adapters.injection.refusal import Gone, Refused

_SEIZE, _INTERRUPT, _CONT, _SINGLESTEP, _DETACH, _GETREGS, _SETREGS = 0x4206, 0x4207, 7, 9, 17, 12, 13
_EVENT_STOP = 128
_WALL = 0x40000000
_SYSCALL = b"\x0f\x05"
_NR_MMAP, _NR_EXIT_GROUP = 9, 231
_PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_POPULATE = 0x3, 0x2 | 0x20 | 0x8000
_NONE = 2**64 - 1
_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.001

_REGISTERS = (  # struct user_regs_struct
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi "
    "orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"
)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in _REGISTERS.split()]


def supported() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def make_exit(pid: int, code: int) -> int:
    """Have the process call exit_group(code). The moment before, in nanoseconds of CLOCK_MONOTONIC."""
    with _stopped(pid) as registers:
        _aim(pid, registers, _NR_EXIT_GROUP, code)
        return time.monotonic_ns()


def make_allocate(pid: int, size_bytes: int) -> None:
    """Have the process map and touch this much memory. It may not survive that, which is no error here."""
    with contextlib.suppress(Gone), _stopped(pid) as registers:
        saved = _Registers.from_buffer_copy(registers)
        text = _aim(
            pid, registers, _NR_MMAP, 0, size_bytes, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS_POPULATE, _NONE, 0
        )
        _ptrace(_SINGLESTEP, pid)
        _await_stop(pid, anything=True)
        _write(pid, saved.rip, text)
        _ptrace(_SETREGS, pid, ctypes.byref(saved))


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[_Registers]:
    """The registers of a process that is stopped for the length of the block."""
    if not supported():
        raise Refused(
            f"this machine is {platform.system()} on {platform.machine()}",
            why="making a process call exit is implemented for Linux on x86-64",
            remedy="Use `kill`, or a script that exits by itself.",
        )
    seen = proc.stat(pid)
    if seen is not None and seen.state in "Tt":
        raise Refused(f"pid {pid} is stopped", remedy="Let it go on first: holdfast drill cont")
    _ptrace(_SEIZE, pid)
    try:
        _ptrace(_INTERRUPT, pid)
        _await_stop(pid)
        registers = _Registers()
        _ptrace(_GETREGS, pid, ctypes.byref(registers))
        yield registers
    finally:
        with contextlib.suppress(Gone):
            _ptrace(_DETACH, pid)


def _aim(pid: int, registers: _Registers, number: int, *arguments: int) -> bytes:
    """Make this system call the next thing that happens; the bytes that stood in its place."""
    text = _write(pid, registers.rip, _SYSCALL)
    registers.rax, registers.orig_rax = number, _NONE  # nothing to restart
    for name, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
        setattr(registers, name, value)
    _ptrace(_SETREGS, pid, ctypes.byref(registers))
    return text


def _write(pid: int, address: int, text: bytes) -> bytes:
    """Put bytes where a process keeps its code; what was there."""
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            before = memory.read(len(text))
            memory.seek(address)
            memory.write(text)
    except OSError as error:
        raise Refused(
            f"the memory of pid {pid} cannot be written", why=(error.strerror or str(error)).lower()
        ) from None
    return before


def _await_stop(pid: int, *, anything: bool = False) -> None:
    """Until the stop that was asked for; signals on the way are passed on."""
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            seen, status = os.waitpid(pid, os.WNOHANG | _WALL)
        except ChildProcessError:
            raise Gone(f"pid {pid}") from None
        if not seen:
            time.sleep(_LOOK_SECONDS)
        elif not os.WIFSTOPPED(status):
            raise Gone(f"pid {pid}")
        elif anything or status >> 16 == _EVENT_STOP:
            return
        else:
            _ptrace(_CONT, pid, None, os.WSTOPSIG(status))
    raise Refused(f"pid {pid} does not stop", why="the kernel holds it in a call that cannot be interrupted")


def _ptrace(request: int, pid: int, address: object = None, data: object = None) -> None:
    if request in (_GETREGS, _SETREGS):
        address, data = None, address
    if _libc.ptrace(request, pid, address, data) != -1:
        return
    number = ctypes.get_errno()
    if number == errno.ESRCH:
        raise Gone(f"pid {pid}")
    if number == errno.EPERM:
        raise Refused(
            f"pid {pid} may not be traced from here",
            why="ptrace needs root, CAP_SYS_PTRACE, or the same user with kernel.yama.ptrace_scope = 0",
        )
    raise Refused(f"pid {pid} cannot be traced", why=os.strerror(number).lower())

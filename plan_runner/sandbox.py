"""A sandbox that protects the machine's files, processes and networks from this process.

Landlock restricts access to files, and a seccomp filter restricts system calls. The kernel enforces
both for all later threads. The process cannot undo them.
"""

import contextlib
import ctypes
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

_PACKAGE = Path(__file__).resolve().parent
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF, _SECCOMP = 444, 445, 446, 317

# --- files

# Landlock's rights in the order of their bits, and the number of rights of each Landlock version.
_RIGHTS = (
    *("execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char"),
    *("make_dir", "make_reg", "make_sock", "make_fifo", "make_block", "make_sym", "refer"),
    *("truncate", "ioctl_dev"),
)
_KNOWN_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
# Further restrictions without exceptions: TCP bind and connect, from Landlock version 4; abstract
# Unix sockets and signals, from version 6.
_NETWORK, _NETWORK_VERSION = 0b11, 4
_SCOPED, _SCOPED_VERSION = 0b11, 6
_READ_FILE = ("read_file",)
_READ_FOLDER = ("read_file", "read_dir")
# Links, pipes, sockets and devices are excluded, because the reader of a result might open them.
_WRITE_FOLDER = (
    *_READ_FOLDER,
    *("write_file", "remove_dir", "remove_file", "make_dir", "make_reg", "truncate"),
)
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
# Files of the system that the C library and TensorFlow read when they start.
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm/overcommit_memory",
    # This allows only this process's folder, as the link is resolved when the rule is added.
    "/proc/self",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_NULL = "/dev/null"

# --- system calls

# Allowed system calls with their numbers on x86-64. The list excludes calls for processes, sockets,
# keys, modules, mounts, tracing, other processes' memory, and files' owners and modes, which
# Landlock does not restrict.
_CALLS = {
    # Calls on files, whose paths Landlock restricts.
    **{"read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8},
    **{"pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "dup": 32},
    **{"dup2": 33, "sendfile": 40, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78},
    **{"getcwd": 79, "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "readlink": 89},
    **{"umask": 95, "statfs": 137, "fstatfs": 138, "readahead": 187, "getdents64": 217},
    **{"fadvise64": 221, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264},
    **{"readlinkat": 267, "faccessat": 269, "fallocate": 285, "dup3": 292, "preadv": 295},
    **{"pwritev": 296, "renameat2": 316, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328},
    **{"statx": 332, "close_range": 436, "faccessat2": 439},
    # Calls on the process's own memory.
    **{"mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "msync": 26},
    **{"mincore": 27, "madvise": 28, "mlock": 149, "munlock": 150, "mbind": 237},
    **{"set_mempolicy": 238, "get_mempolicy": 239, "membarrier": 324, "mlock2": 325},
    **{"pkey_mprotect": 329, "pkey_alloc": 330, "pkey_free": 331},
    # Calls for threads, and for signals between threads.
    **{"rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24},
    **{"exit": 60, "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130},
    **{"sigaltstack": 131, "arch_prctl": 158, "gettid": 186, "futex": 202},
    **{"sched_getaffinity": 204, "set_tid_address": 218, "restart_syscall": 219},
    **{"exit_group": 231, "set_robust_list": 273, "get_robust_list": 274, "getcpu": 309},
    **{"rseq": 334, "futex_waitv": 449, "wait4": 61, "waitid": 247},
    **{"sched_getparam": 143, "sched_getscheduler": 145, "sched_get_priority_max": 146},
    **{"sched_get_priority_min": 147, "sched_getattr": 315},
    # Calls for waiting, for pipes and for events.
    **{"poll": 7, "pipe": 22, "select": 23, "pause": 34, "nanosleep": 35, "epoll_create": 213},
    **{"clock_nanosleep": 230, "epoll_wait": 232, "epoll_ctl": 233, "pselect6": 270, "ppoll": 271},
    **{"epoll_pwait": 281, "eventfd": 284, "eventfd2": 290, "epoll_create1": 291, "pipe2": 293},
    **{"epoll_pwait2": 441},
    # Calls that return the time, random bytes, or facts about the machine and the process.
    **{"getpid": 39, "uname": 63, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98},
    **{"sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108},
    **{"getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120},
    **{"getpgid": 121, "getsid": 124, "capget": 125, "getpriority": 140, "time": 201},
    **{"clock_gettime": 228, "clock_getres": 229, "getrandom": 318},
}
# Rejected calls from this number on return ENOSYS instead of EPERM, because programs expect that
# older kernels lack them. An example is clone3, whose flags are in memory that a filter cannot
# read. After ENOSYS, the C library starts threads by clone.
_FIRST_NEW_CALL = 424
_OPEN, _IOCTL, _CLONE, _KILL, _FCNTL, _PRCTL = 2, 16, 56, 62, 72, 157
_TGKILL, _OPENAT, _PRLIMIT64 = 234, 257, 302
# Before version 3, Landlock does not restrict truncation when a file is opened for reading, or with
# access mode 3 (neither reading nor writing). So allow O_TRUNC only with modes for writing, which
# Landlock restricts.
_OPEN_MASK = os.O_ACCMODE | os.O_TRUNC
_OPEN_FLAGS = [
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_TRUNC,
    os.O_RDWR | os.O_TRUNC,
]
_CLONE_THREAD = 0x00010000
# Flags of `clone` for new namespaces: of mounts, cgroups, host names, IPC, users, processes,
# networks, and times.
_CLONE_NEW = 1 << 17 | 1 << 25 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 7
# Allowed commands of `ioctl`: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. They do not
# change devices.
_IOCTLS = [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]
# Allowed commands of `fcntl`: those that duplicate descriptors or access their flags, but none for
# locks or signals.
_FCNTLS = [0, 1, 2, 3, 4, 1030]
# Allowed commands of `prctl`: PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_SET_VMA.
# PR_SET_PDEATHSIG is excluded, so that the process still ends with its parent.
_PRCTLS = [15, 16, 23, 0x53564D41]
_AUDIT_ARCH_X86_64 = 0xC000003E
# Bit in the numbers of x32 system calls, which x86-64 kernels may also support.
_X32 = 0x40000000
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
# Flags that apply the filter to all threads, and disable a mitigation that slows down filtered
# processes before Linux 5.16.
_TSYNC, _SPEC_ALLOW = 1, 4
# BPF instructions: load a word of the system call's data, bitwise and, two comparisons, return.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOWED = _RETURN, 0, 0, _ALLOW
_REFUSED = _RETURN, 0, 0, _ERRNO | _EPERM


class Refused(Exception):
    """Raised by an isolated function for an invalid payload, with a one-line message."""


def missing() -> list[str]:
    """Returns the features that a sandbox needs, and that this machine lacks."""
    system = f"{platform.system()} {platform.machine()}"
    if system != "Linux x86_64":
        return [f"sandbox for {system} (there is one for Linux x86_64)"]
    lacks = []
    if _landlock_version() is None:
        lacks.append("Landlock (Linux 5.13, with landlock among the kernel's security modules)")
    if not _has_seccomp():
        lacks.append("seccomp filters (CONFIG_SECCOMP_FILTER)")
    return lacks


def enter(reads: Iterable[str], scratch: Path) -> None:
    """Puts this process into a sandbox, which it cannot leave.

    Afterwards the process can start threads, read Python's folders, shared libraries and `reads`,
    and write below `scratch`. It cannot start or signal other processes, and cannot open sockets.

    Args:
        reads: Readable files, and folders with their contents.
        scratch: Existing folder that remains writable.

    Raises:
        Refused: The kernel rejects the sandbox, or this process has several threads.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise Refused("expected one thread when the sandbox is entered, found more")
    try:
        _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _restrict_files([*_system_files(), *_python_folders(), *reads], scratch)
        _restrict_calls()
    except OSError as e:
        raise Refused(f"expected the kernel to take the sandbox, it did not ({e.strerror})") from e


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _landlock_version() -> Optional[int]:
    """Returns the kernel's Landlock version; None if the kernel has no Landlock."""
    version = _LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    return version if version > 0 else None


def _bits(rights: Iterable[str]) -> int:
    return sum(1 << _RIGHTS.index(right) for right in rights)


def _restrict_files(reads: Iterable[str], scratch: Path) -> None:
    version = _landlock_version()
    if version is None:
        raise OSError(ctypes.get_errno(), "it has no Landlock")
    # The system-call filter covers the rights that early Landlock versions do not know.
    rights = (1 << _KNOWN_RIGHTS[min(version, max(_KNOWN_RIGHTS))]) - 1
    ruleset = _Ruleset(
        rights,
        _NETWORK if version >= _NETWORK_VERSION else 0,
        _SCOPED if version >= _SCOPED_VERSION else 0,
    )
    rules = _checked(
        _LIBC.syscall(_LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    )
    for path in reads:
        _allow(rules, path, _bits(_READ_FOLDER), _bits(_READ_FILE))
    _allow(rules, _NULL, 0, _bits(("read_file", "write_file")))
    _allow(rules, str(scratch), _bits(_WRITE_FOLDER) & rights, 0)
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, folder_rights: int, file_rights: int) -> None:
    """Adds a Landlock rule for a path, unless the path is missing or unreadable."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # Missing or unreadable paths need no rule.
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        rule = _Beneath(folder_rights if is_folder else file_rights, opened)
        if rule.allowed:
            _checked(
                _LIBC.syscall(_LANDLOCK_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            )
    finally:
        os.close(opened)


def _system_files() -> Iterator[str]:
    yield from _SYSTEM
    yield from filter(os.path.isabs, os.environ.get(_LIBRARY_PATH, "").split(":"))


def _python_folders() -> Iterator[str]:
    """Yields the folders of Python's modules, installed packages, and this package.

    Entries of `sys.path` that may contain the user's files are omitted: the current folder, and
    folders above this package, except site-packages.
    """
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield from sysconfig.get_paths().values()
    yield str(_PACKAGE)
    users = set(_PACKAGE.parents)
    # The current folder may have been removed.
    with contextlib.suppress(OSError):
        users.add(Path.cwd())
    for entry in sys.path:
        path = Path(entry).absolute()
        if path.name in _INSTALLED or (entry and path.resolve() not in users):
            yield entry


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


_Code = list[tuple[int, int, int, int]]


def _has_seccomp() -> bool:
    action = ctypes.c_uint32(_ERRNO)
    return bool(_LIBC.syscall(_SECCOMP, _GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0)


def _restrict_calls() -> None:
    code = _filter(os.getpid())
    instructions = (_Instruction * len(code))(*(_Instruction(*step) for step in code))
    program = _Program(len(code), instructions)
    flags = _TSYNC | _SPEC_ALLOW
    # A positive result is the id of a thread that cannot apply the filter.
    if _checked(_LIBC.syscall(_SECCOMP, _SET_MODE_FILTER, flags, ctypes.byref(program))):
        raise OSError(_EPERM, "a thread rejects the filter")


def _filter(pid: int) -> _Code:
    """Returns the BPF program that allows or rejects each system call of process `pid`."""
    judged = {
        _OPEN: _choice(1, _OPEN_FLAGS, _OPEN_MASK),
        _OPENAT: _choice(2, _OPEN_FLAGS, _OPEN_MASK),
        _CLONE: _choice(0, [_CLONE_THREAD], _CLONE_THREAD | _CLONE_NEW),
        _KILL: _choice(0, [pid]),
        _TGKILL: _choice(0, [pid]),
        _IOCTL: _choice(1, _IOCTLS),
        _FCNTL: _choice(1, _FCNTLS),
        _PRCTL: _choice(0, _PRCTLS),
        # The pointer to new limits must be null, so that limits can only be read.
        _PRLIMIT64: [*_unless_zero(2), *_choice(2, [0])],
    }
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        *_if(_AT_LEAST, _X32, [(_RETURN, 0, 0, _ERRNO | _ENOSYS)]),
        *(step for number in _CALLS.values() for step in _if(_EQUAL, number, [_ALLOWED])),
        *(step for number, code in judged.items() for step in _if(_EQUAL, number, code)),
        *_if(_AT_LEAST, _FIRST_NEW_CALL, [(_RETURN, 0, 0, _ERRNO | _ENOSYS)]),
        _REFUSED,
    ]


def _if(comparison: int, value: int, code: _Code) -> _Code:
    """Returns code that runs `code` only if the loaded word and `value` satisfy a comparison."""
    return [(comparison, 0, len(code), value), *code]


def _choice(argument: int, values: Iterable[int], mask: Optional[int] = None) -> _Code:
    """Returns code that allows a call if the low 32 bits of an argument are among `values`."""
    masked = [] if mask is None else [(_AND, 0, 0, mask)]
    compared = [step for value in values for step in _if(_EQUAL, value, [_ALLOWED])]
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *masked, *compared, _REFUSED]


def _unless_zero(argument: int) -> _Code:
    """Returns code that rejects a call if the high 32 bits of an argument are not 0."""
    upper = _ARGUMENTS + 8 * argument + 4
    return [(_LOAD, 0, 0, upper), (_EQUAL, 1, 0, 0), _REFUSED]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

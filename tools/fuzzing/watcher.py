"""Traces the process that executes mutants with strace, and reports suspicious system calls."""

import collections
import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from fuzzing.playing import MARK

# System calls to trace: all with a path, and all that create or access processes or addresses.
_TRACED = (
    "open,openat,openat2,creat,truncate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,fchown,lchown,"
    "fchownat,utime,utimes,utimensat,setxattr,lsetxattr,fsetxattr,execve,execveat,fork,vfork,clone,"
    "clone3,kill,tgkill,tkill,ptrace,process_vm_readv,process_vm_writev,socket,socketpair,connect,"
    "bind,sendto,io_uring_setup,memfd_create,mount,unshare,setns,bpf,shmget,keyctl,userfaultfd"
)
_LINE = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+|\?)")
_HALF = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_REST = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
# Matches a path in strace's log, and the folder of the file descriptor before it, if any.
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_OPENS = ("open", "openat", "creat", "openat2")
_SIGNALS = ("kill", "tgkill", "tkill")
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
# Files that TensorFlow itself opens: the files with names of threads, and system files that may be
# missing.
_USUAL = re.compile(r"/dev/null$|/proc/self/task/\d+/comm$|/proc/self/comm$|/etc/inputrc$")


@dataclasses.dataclass(frozen=True)
class Find:
    """A suspicious system call of a mutant.

    Attributes:
        mutant: Number of the mutant.
        call: The system call, as strace prints it.
        done: Whether the call succeeded.
    """

    mutant: int
    call: str
    done: bool


class Tally:
    """The finds, and the number of mutants for each outcome."""

    def __init__(self) -> None:
        self.finds: list[Find] = []
        self.ends: collections.Counter[str] = collections.Counter()

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {name}" for name, count in self.ends.most_common())
        return f"{len(self.finds)} finds; {ends}"


class Watcher:
    """An `isolation.Listener` that starts strace at the process's request."""

    def __init__(self, log: Path, tally: Tally) -> None:
        self._log, self._tally = log, tally
        self._strace: Optional[subprocess.Popen[bytes]] = None
        self.number, self.scratch = -1, ""

    def step(self, name: str) -> None:
        """Does nothing."""

    def line(self, text: str) -> None:
        """Starts strace, or records a mutant's number or outcome."""
        kind, _, rest = text.partition(" ")
        if kind == "watch":
            pid, _, self.scratch = rest.partition(" ")
            command = ["strace", "-f", "-qq", "-y", "-s", "300", "-e", f"trace={_TRACED}"]
            self._strace = subprocess.Popen([*command, "-o", str(self._log), "-p", pid])
        elif kind == "mutant":
            self.number = int(rest)
        elif kind == "end":
            self._tally.ends[rest] += 1
        else:
            print(text, flush=True)

    def results(self, folder: Path) -> None:
        """Removes the results."""
        shutil.rmtree(folder)

    def close(self) -> None:
        """Waits until strace has completed its log."""
        if self._strace is not None:
            # strace ends with the traced process.
            self._strace.wait()


def judged(log: Path, scratch: str) -> Iterator[Find]:
    """Yields the calls in strace's log that try to leave the sandbox."""
    number, halves = -1, {}
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        if half := _HALF.match(line):
            halves[half[1]] = f"{half[1]} {half[2]}({half[3]}"
            continue
        if rest := _REST.match(line):
            line = halves.pop(rest[1], "") + rest[2]
        call = _LINE.match(line)
        if call is None:
            continue
        name, given, result = call.groups()
        paths = [os.path.join(*parts) for parts in _PATH.findall(given)]
        if name == "rmdir" and paths and paths[0].startswith(f"{MARK}/"):
            number = int(paths[0].rpartition("/")[2])
            continue
        done = not result.startswith("-")
        if _is_foreign(name, given, paths, done, scratch):
            yield Find(number, line, done)


def _is_foreign(name: str, given: str, paths: list[str], done: bool, scratch: str) -> bool:
    if name in ("clone", "clone3"):
        return "CLONE_THREAD" not in given
    if name in _SIGNALS:
        # TensorFlow may send signals to its own process, the only one in the sandbox.
        return done and name == "kill" and not given.startswith(str(os.getpid()))
    inside = bool(paths) and all(
        (path.startswith(f"{scratch}/") and "/../" not in path) or _USUAL.search(path)
        for path in paths
    )
    if name in _OPENS:
        # Successful reads outside the folder are TensorFlow's.
        return not inside and bool(_WRITING.search(given) or name == "creat" or not done)
    return not inside

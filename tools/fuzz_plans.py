"""Plays mutated exports in run_plan's sandbox, and watches what they try to reach.

    .venv/bin/python tools/fuzz_plans.py --plan EXPORT [EXPORT ...] --minutes=30

Each mutant is an export with some of its graphs, messages, TFLite graph, checkpoints or examples
changed, whose hashes are right again. Every second one is played without the check of graphs, so
that there is something to keep from. strace sees each system call of the process that plays: with
the check, one that would write elsewhere, start a process or open a socket is a find even if the
sandbox refuses it; without, only one that succeeds. A find names its mutant, which --only plays
again.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from plan_runner import plan_pb2  # noqa: E402
from plan_runner.clients.kernel import Kernel, find_kernel, give_kernel  # noqa: E402
from plan_runner.command.request import Request  # noqa: E402
from plan_runner.errors import PlanError  # noqa: E402
from plan_runner.files.limits import Limits  # noqa: E402
from plan_runner.isolation.bounds import IsolationError, Listener  # noqa: E402
from plan_runner.isolation.supervisor import run_isolated  # noqa: E402

# Mutants that one process plays: TensorFlow keeps some memory of each graph.
_BATCH = 100
_LIMITS = Limits(max_memory_gb=3.0, max_round_seconds=20.0)
_MARK = "/fuzz"
_MOST_FAILED_STARTS = 10
# What the process tries before the first mutant, to see that it is watched.
_WATCHED = 3
_CHECKS = ("profiles.daf.check_graph", "profiles.secure.check_graph")
_CHECKS += ("clients.client_graph.check_graph", "clients.tflite_beside.check_tflite")

# Operations that write, read or connect, by a string.
_REACHING = (
    *("WriteFile", "ReadFile", "SaveV2", "SaveSlices", "Save", "MatchingFiles", "PrintV2"),
    *("DebugIdentityV2", "DebugIdentity", "RestoreV2", "TFRecordDataset", "TextLineDataset"),
    *("DataServiceDatasetV2", "ShardedFilename", "MergeV2Checkpoints", "ImmutableConst"),
    *("CreateSummaryFileWriter", "LookupTableExportV2", "FixedLengthRecordReaderV2", "PyFunc"),
)

# What strace prints; all that names a path, and all that makes or reaches something else.
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
# A path, and before it the folder of the descriptor that it begins at.
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_OPENS = ("open", "openat", "creat", "openat2")
_SIGNALS = ("kill", "tgkill", "tkill")
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
# What TensorFlow does by itself: names of its threads, and files of the system that may be missing.
_USUAL = re.compile(r"/dev/null$|/proc/self/task/\d+/comm$|/proc/self/comm$|/etc/inputrc$")


@dataclasses.dataclass(frozen=True)
class Find:
    """Something that a mutant tried or did.

    Attributes:
        mutant: Its number.
        call: The system call, as strace prints it.
        done: Whether it succeeded.
    """

    mutant: int
    call: str
    done: bool


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Fuzzes for as long as the command line says; returns 1 if there are finds."""
    parser = argparse.ArgumentParser(prog="fuzz_plans", description=__doc__)
    parser.add_argument("--plan", type=Path, nargs="+", required=True, help="exports to begin with")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one mutant to play")
    parsed = parser.parse_args(arguments)
    if shutil.which("strace") is None:
        parser.error("expected the program strace, found none (Debian's package strace)")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    end, tally = time.monotonic() + 60 * parsed.minutes, _Tally()
    number = 0 if parsed.only is None else parsed.only
    last = sys.maxsize if parsed.only is None else number + 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz_canary_") as canary:
        while number < last and time.monotonic() < end:
            played = _play_batch(parsed, number, min(last, number + _BATCH), Path(canary), tally)
            number = played
            print(f"{(time.monotonic() - began) / 60:5.1f} min: {tally}", flush=True)
    for find in tally.finds:
        print(f"FOUND: mutant {find.mutant}: {'done' if find.done else 'tried'}: {find.call}")
    print(f"{number if parsed.only is None else 1} mutants, {len(tally.finds)} finds: {tally}")
    return 1 if tally.finds else 0


class _Tally:
    """What has been seen so far."""

    def __init__(self) -> None:
        self.finds: list[Find] = []
        self.ends: collections.Counter[str] = collections.Counter()

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {name}" for name, count in self.ends.most_common())
        return f"{len(self.finds)} finds; {ends}"


def _play_batch(asked: Any, first: int, last: int, canary: Path, tally: _Tally) -> int:
    """Plays mutants in one process; returns the number of the next one."""
    exports = [str(path.resolve()) for path in asked.plan]
    found = find_kernel()
    payload = {
        "exports": exports,
        "numbers": [first, last],
        "seed": asked.seed,
        "canary": str(canary / "written"),
        "kernel": found,
    }
    reads = [str(ROOT), *exports, found.library]
    with tempfile.TemporaryDirectory(prefix="fuzz_log_") as folder:
        log = Path(folder) / "log"
        watcher = _Watcher(log, tally)
        try:
            run_isolated(
                f"{Path(__file__).stem}:play_mutants", payload, _LIMITS.bounds, watcher, reads
            )
        except IsolationError as e:
            if watcher.number < first:
                # A machine with other work may take long to import TensorFlow.
                tally.ends["starts that failed"] += 1
                if tally.ends["starts that failed"] > _MOST_FAILED_STARTS:
                    raise
                return first
            # A crash, or a limit: one line for the user. The mutant is told, to be looked at.
            kind = "ended at a limit" if "--max_" in str(e) and "SIG" not in str(e) else "crashes"
            tally.ends[kind] += 1
            print(f"mutant {watcher.number}: {e}", flush=True)
        finally:
            watcher.close()
        judged = list(_judged(log, watcher.scratch))
        if len(judged) < _WATCHED or any(find.mutant >= 0 for find in judged[:_WATCHED]):
            raise RuntimeError("expected strace to show what is tried at the start, it does not")
        for find in judged[_WATCHED:]:
            if find.done or _is_checked(find.mutant):
                tally.finds.append(find)
            else:
                tally.ends["tries of unchecked ones that the sandbox refused"] += 1
    for path in canary.rglob("*"):
        tally.finds.append(Find(watcher.number, f"a file at {path}", True))
        path.unlink()
    return watcher.number + 1


class _Watcher:
    """A `bounds.Listener` that has strace watch the process once that asks for it."""

    def __init__(self, log: Path, tally: _Tally) -> None:
        self._log, self._tally = log, tally
        self._strace: Optional[subprocess.Popen[bytes]] = None
        self.number, self.scratch = -1, ""

    def step(self, name: str) -> None:
        """Has nothing to do."""

    def line(self, text: str) -> None:
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
        shutil.rmtree(folder)

    def close(self) -> None:
        if self._strace is not None:
            # It ends with what it watches.
            self._strace.wait()


def _judged(log: Path, scratch: str) -> Iterator[Find]:
    """Yields the calls in strace's log that would reach something else."""
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
        paths = [os.path.join(*found) for found in _PATH.findall(given)]
        if name == "rmdir" and paths and paths[0].startswith(f"{_MARK}/"):
            number = int(paths[0].rpartition("/")[2])
            continue
        done = not result.startswith("-")
        if _is_foreign(name, given, paths, done, scratch):
            yield Find(number, line, done)


def _is_foreign(name: str, given: str, paths: list[str], done: bool, scratch: str) -> bool:
    if name in ("clone", "clone3"):
        return "CLONE_THREAD" not in given
    if name in _SIGNALS:
        # Its own, when TensorFlow ends it; the sandbox knows no other.
        return done and name == "kill" and not given.startswith(str(os.getpid()))
    inside = bool(paths) and all(
        (path.startswith(f"{scratch}/") and "/../" not in path) or _USUAL.search(path)
        for path in paths
    )
    if name in _OPENS:
        # What is read elsewhere and may be is TensorFlow's own.
        return not inside and bool(_WRITING.search(given) or name == "creat" or not done)
    return not inside


def _is_checked(number: int) -> bool:
    return number % 2 == 0


# --- in the process that plays


def play_mutants(payload: dict[str, Any], listener: Listener, scratch: Path) -> int:
    """Plays mutants of these numbers; tells how each ended."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    give_kernel(Kernel(*payload["kernel"]))
    # All that TensorFlow loads by itself is loaded before somebody watches.
    warm = _copied(payload["exports"][0], scratch / "warm")
    if _end_of(warm, scratch) != "played":
        raise ValueError("expected an export that is verified")
    listener.line(f"watch {os.getpid()} {scratch}")
    while "TracerPid:\t0" in Path("/proc/self/status").read_text():
        time.sleep(0.01)
    # Whoever watches has to see these.
    for attempt in (Path(payload["canary"]).touch, os.fork, socket.socket):
        try:
            attempt()
        except PermissionError:
            continue
        raise ValueError("expected a sandbox, found none")
    for number in range(*payload["numbers"]):
        listener.step(f"mutant {number}")
        listener.line(f"mutant {number}")
        with contextlib.suppress(OSError):
            os.rmdir(f"{_MARK}/{number}")
        rng = random.Random(f"{payload['seed']} {number}")
        folder = _copied(rng.choice(payload["exports"]), scratch / "mutant")
        _Mutation(rng, payload["canary"], _is_checked(number)).apply(folder)
        with contextlib.ExitStack() as stack:
            if not _is_checked(number):
                for name in _CHECKS:
                    stack.enter_context(mock.patch(f"plan_runner.{name}", lambda *given: None))
            end = _end_of(folder, scratch)
            listener.line(f"end {end.partition(':')[0]}")
            if ":" in end:
                listener.line(f"note mutant {number}: {end}")
        shutil.rmtree(folder)
    return 0


def _end_of(folder: Path, scratch: Path) -> str:
    """Verifies an export; returns how that ends."""
    from plan_runner.command.play import play

    try:
        # With other numbers: those expected are of more clients.
        play(Request(str(folder), verify=True, limits=_LIMITS), _Nobody(), scratch)
        return "played"
    except PlanError as e:
        return "refused" if "is refused" in str(e) or "which is fed" in str(e) else "not played"
    # One line for a user; its kind is told.
    except Exception as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
        return f"{type(e).__name__}: {e} ({Path(frame.filename).name}:{frame.lineno})"


class _Nobody:
    def step(self, name: str) -> None:
        """Has nothing to do."""

    def line(self, text: str) -> None:
        """Has nothing to do."""

    def results(self, folder: Path) -> None:
        """Has nothing to do."""


def _copied(export: str, folder: Path) -> Path:
    """Copies an export's files, not their modes and times; leaves a round of one client."""
    for path in Path(export).rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(export)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    conformance = manifest["conformance"]
    kept = {**conformance, "rounds": 1, "clients": conformance["clients"][:1]}
    kept["expected"] = conformance["expected"][:1]
    path.write_text(json.dumps({**manifest, "conformance": kept}))
    return folder


class _Mutation:
    """A few changes of an export, drawn at random.

    Args:
        rng: Draws them.
        canary: A path outside of what the process may write.
        checked: Whether graphs are checked; otherwise something in them works to reach it.
    """

    def __init__(self, rng: random.Random, canary: str, checked: bool) -> None:
        import tensorflow as tf
        from tensorflow.core.framework import op_def_pb2
        from tensorflow.python.client import pywrap_tf_session

        self._rng, self._canary, self._checked = rng, canary, checked
        known = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
        self._ops = op_def_pb2.OpList.FromString(known).op
        self._named = {op.name: op for op in self._ops}
        self._tf = tf
        self._texts = [f"file://{canary}", "grpc://localhost:1", "", "/etc/passwd", "../x", "\0"]
        self._texts += ["x" * 5000, f"{canary}\0.ckpt", "localhost:1", "/proc/self/mem"]

    def apply(self, folder: Path) -> None:
        """Changes an export, and its manifest's hashes."""
        kinds: list[tuple[Callable[[Path], None], int]] = [
            (self._change_plan, 10),
            (self._change_tflite, 4),
            (self._change_bytes, 2),
        ]
        change = self._rng.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0]
        change(folder)
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            entry.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        path.write_text(json.dumps(manifest))

    # --- files

    def _change_bytes(self, folder: Path) -> None:
        names = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
        path = self._rng.choice(names)
        path.write_bytes(self._flipped(path.read_bytes()))

    def _flipped(self, content: bytes) -> bytes:
        found = bytearray(content)
        for _ in range(self._rng.choice([1, 1, 2, 5, 20])):
            at = self._rng.randrange(len(found) + 1)
            kind = self._rng.random()
            if kind < 0.6 and at < len(found):
                found[at] = self._rng.choice([0, 1, 127, 128, 255, self._rng.randrange(256)])
            elif kind < 0.8:
                found[at:at] = self._rng.randbytes(self._rng.choice([1, 4, 8]))
            else:
                del found[at : at + self._rng.choice([1, 4, 100])]
        return bytes(found)

    # --- messages and graphs

    def _change_plan(self, folder: Path) -> None:
        path = folder / "plan.pb"
        plan = plan_pb2.Plan.FromString(path.read_bytes())
        packed = [
            any_
            for any_ in (
                *(plan.client_graph_bytes,) * 3,
                plan.server_graph_prepare_bytes,
                plan.server_graph_result_bytes,
                plan.server_graph_bytes,
            )
            if any_.value
        ]
        names: list[str] = []
        for chosen in self._rng.sample(packed, self._rng.choice([1, 1, 1, 2])):
            graph = self._tf.compat.v1.GraphDef.FromString(chosen.value)
            if not self._checked:
                self._reach(graph, graph.node, None)
            for _ in range(self._rng.choice([0, 1, 1, 2, 4]) + self._checked):
                self._change_graph(graph)
            names += [node.name for node in graph.node]
            chosen.value = graph.SerializeToString()
        if self._rng.random() < 0.5:
            self._change_message(plan, names)
        path.write_bytes(plan.SerializeToString())

    def _change_graph(self, graph: Any) -> None:
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        nodes = self._rng.choice(bodies) if self._rng.random() < 0.3 else graph.node
        if not nodes:
            return
        node = self._rng.choice(nodes)
        changes: list[Callable[[Any, Any, Any], None]] = [
            self._set_text,
            self._rewire,
            self._replace,
            self._add,
            self._rename,
            self._change_attribute,
            self._change_attribute,
            self._change_function,
            self._set_version,
            self._get_in_between,
            self._get_in_between,
            self._place,
            self._reach,
            self._reach,
        ]
        self._rng.choice(changes)(graph, nodes, node)

    def _set_text(self, graph: Any, nodes: Any, node: Any) -> None:
        constants = [n for n in nodes if n.op == "Const" and n.attr["value"].tensor.string_val]
        if constants:
            tensor = self._rng.choice(constants).attr["value"].tensor
            at = self._rng.randrange(len(tensor.string_val))
            tensor.string_val[at] = self._text()

    def _rewire(self, graph: Any, nodes: Any, node: Any) -> None:
        if node.input:
            at = self._rng.randrange(len(node.input))
            node.input[at] = self._other_input(nodes)

    def _other_input(self, nodes: Any) -> str:
        name = self._rng.choice(nodes).name
        return self._rng.choice([name, name, f"{name}:1", f"^{name}", f"{name}:0"])

    def _replace(self, graph: Any, nodes: Any, node: Any) -> None:
        """Makes another operation of a node, often one of files."""
        telling = [op for op in self._ops if re.search("File|Save|Restore|Debug|Py|Rpc", op.name)]
        self._become(nodes, node, self._rng.choice(self._rng.choice([self._ops, telling])))

    def _become(self, nodes: Any, node: Any, definition: Any) -> None:
        node.op = definition.name
        kept = list(node.input)[: len(definition.input_arg)]
        while len(kept) < len(definition.input_arg):
            kept.append(self._other_input(nodes).removeprefix("^"))
        del node.input[:]
        node.input.extend(kept)
        for attribute in definition.attr:
            if attribute.name not in node.attr:
                self._fill(node, attribute)

    def _fill(self, node: Any, attribute: Any) -> None:
        value = node.attr[attribute.name]
        if attribute.HasField("default_value") and self._rng.random() < 0.7:
            value.CopyFrom(attribute.default_value)
        elif attribute.type == "string":
            value.s = self._text()
        elif attribute.type == "int":
            value.i = self._number()
        elif attribute.type == "bool":
            value.b = self._rng.random() < 0.5
        elif attribute.type == "type":
            value.type = self._rng.choice([1, 1, 3, 7, 9, 10, 20, 21, self._rng.randrange(30)])
        elif attribute.type == "list(type)":
            value.list.type.extend(self._rng.choices([1, 3, 7, 9], k=self._rng.randrange(3)))
        elif attribute.type == "list(string)":
            value.list.s.append(self._text())
        elif attribute.type in ("shape", "list(shape)"):
            shape = value.shape if attribute.type == "shape" else value.list.shape.add()
            shape.dim.add(size=self._number())
        else:
            value.list.SetInParent()

    def _add(self, graph: Any, nodes: Any, node: Any) -> None:
        """Adds a copy, perhaps of another operation, and has something wait for it."""
        added = nodes.add()
        added.CopyFrom(node)
        added.name = f"added_{len(nodes)}"
        if self._rng.random() < 0.5:
            self._replace(graph, nodes, added)
        waiting = [n for n in nodes if "save" in n.name.lower() or n.op == "SaveSlices"] or nodes
        self._rng.choice(waiting).input.append(f"^{added.name}")

    def _reach(self, graph: Any, nodes: Any, node: Any) -> None:
        """Adds an operation that reaches something and works, and has a file's operation wait."""
        definition = self._named[self._rng.choice(_REACHING)]
        added = graph.node.add(name=f"reach_{len(graph.node)}", op=definition.name)
        for number, argument in enumerate(definition.input_arg):
            constant = graph.node.add(name=f"{added.name}_{number}", op="Const")
            value: Any = 1.0
            if argument.type == 7:
                value = self._text()
            elif argument.type in (3, 9):
                value = 1
            if argument.number_attr or argument.name in ("tensor_names", "shape_and_slices"):
                value = [value]
            dtype = argument.type if argument.type in (3, 7, 9) else 1
            constant.attr["dtype"].type = dtype
            tensor = self._tf.make_tensor_proto(value, dtype)
            constant.attr["value"].tensor.CopyFrom(tensor)
            added.input.append(constant.name)
        for attribute in definition.attr:
            if attribute.type == "type":
                added.attr[attribute.name].type = 1
            elif attribute.type == "list(type)":
                added.attr[attribute.name].list.type.append(1)
            elif attribute.type == "list(string)":
                added.attr[attribute.name].list.s.append(self._text())
            else:
                self._fill(added, attribute)
        takers = [n for n in graph.node if n.op in ("SaveSlices", "RestoreV2")]
        self._rng.choice(takers or graph.node).input.append(f"^{added.name}")

    def _rename(self, graph: Any, nodes: Any, node: Any) -> None:
        names = [self._rng.choice(nodes).name, f"{node.name}:0", "", self._canary, "x" * 5000]
        node.name = self._rng.choice(names)

    def _change_attribute(self, graph: Any, nodes: Any, node: Any) -> None:
        if not node.attr:
            return
        name = self._rng.choice(sorted(node.attr))
        value = node.attr[name]
        kind = value.WhichOneof("value")
        if self._rng.random() < 0.2:
            del node.attr[name]
        elif self._rng.random() < 0.2:
            other = self._rng.choice(nodes)
            if other.attr:
                value.CopyFrom(other.attr[self._rng.choice(sorted(other.attr))])
        elif kind == "s":
            value.s = self._text()
        elif kind == "i":
            value.i = self._number()
        elif kind == "type":
            value.type = self._rng.randrange(40)
        elif kind == "func":
            functions = [f.signature.name for f in graph.library.function]
            value.func.name = self._rng.choice([*functions, "ReadFile", "WriteFile", ""])
        elif kind == "shape":
            value.shape.dim.add(size=self._number())
        elif kind == "tensor":
            value.tensor.tensor_shape.dim.add(size=self._number())
        elif kind == "list":
            value.list.Clear()
        elif kind == "b":
            value.b = not value.b

    def _change_function(self, graph: Any, nodes: Any, node: Any) -> None:
        functions = graph.library.function
        if not functions:
            return
        function = self._rng.choice(functions)
        kind = self._rng.randrange(5)
        if kind == 0:
            function.signature.name = self._rng.choice(["ReadFile", "SaveV2", "Identity", "x"])
        elif kind == 1:
            other = functions.add()
            other.CopyFrom(function)
            other.signature.name = self._rng.choice(self._ops).name
        elif kind == 2:
            function.signature.is_stateful = not function.signature.is_stateful
        elif kind == 3:
            names = [self._rng.choice(functions).signature.name for _ in range(2)]
            graph.library.gradient.add(function_name=names[0], gradient_func=names[1])
        elif function.ret:
            function.ret[self._rng.choice(sorted(function.ret))] = self._other_input(
                function.node_def or nodes
            )

    def _set_version(self, graph: Any, nodes: Any, node: Any) -> None:
        graph.versions.producer = self._rng.choice([0, 1, 21, 987, 2**31 - 1])
        graph.versions.min_consumer = self._rng.choice([0, 0, 1, 2**31 - 1])

    def _get_in_between(self, graph: Any, nodes: Any, node: Any) -> None:
        """Puts something between a path and the operation that takes it."""
        takers = [n for n in graph.node if n.op in ("SaveSlices", "RestoreV2", "Save", "SaveV2")]
        if not takers:
            return
        taker = self._rng.choice(takers)
        if self._rng.random() < 0.5:
            second = graph.node.add()
            second.CopyFrom(taker)
            second.name = f"second_{len(graph.node)}"
            taker.input.append(f"^{second.name}")
            taker = second
        between = graph.node.add(name=f"between_{len(graph.node)}", input=[taker.input[0]])
        between.op = self._rng.choice(
            ["Identity", "PlaceholderWithDefault", "StringLower", "EnsureShape", "Snapshot"]
        )
        between.attr["dtype" if "Default" in between.op else "T"].type = 7
        between.attr["shape"].shape.unknown_rank = True
        taker.input[0] = between.name

    def _place(self, graph: Any, nodes: Any, node: Any) -> None:
        kind = self._rng.randrange(4)
        if kind == 0:
            node.device = self._rng.choice(["/job:worker/task:0", "/device:GPU:0", self._canary])
        elif kind == 1:
            node.attr["_class"].list.s.append(f"loc:@{self._rng.choice(nodes).name}".encode())
        elif kind == 2:
            node.attr["_XlaMustCompile"].b = True
        else:
            node.attr["_kernel"].s = self._rng.choice([b"host", b"eager", b"label"])

    def _change_message(self, plan: Any, names: list[str]) -> None:
        client = plan.phase[0].client_phase
        specs = [client.tensorflow_spec]
        if plan.phase[0].HasField("server_phase_v2"):
            server = plan.phase[0].server_phase_v2
            specs += [server.tensorflow_spec_prepare, server.tensorflow_spec_result]
        spec = self._rng.choice(specs)
        kind = self._rng.random()
        if kind < 0.6:
            value = self._rng.choice([self._text(), self._number()])
            tensor = self._tf.make_tensor_proto(value).SerializeToString()
            spec.constant_inputs[self._tensor(names)] = tensor
        elif kind < 0.7:
            client.tensorflow_spec.dataset_token_tensor_name = self._tensor(names)
        elif kind < 0.8:
            router = client.federated_compute
            router.input_filepath_tensor_name = self._tensor(names)
        elif kind < 0.9:
            spec.target_node_names.append(self._tensor(names).partition(":")[0])
        else:
            config = plan.tensorflow_config_proto
            config.value = self._flipped(config.value)

    def _tensor(self, names: list[str]) -> str:
        paths = [name for name in names if "path" in name or "between" in name]
        name = self._rng.choice(self._rng.choice([names, paths or names]))
        return f"{name}{self._rng.choice([':0', ':0', ':00', ': 0', '', ':1'])}"

    # --- TFLite

    def _change_tflite(self, folder: Path) -> None:
        path = folder / "client_only_plan.pb"
        device = plan_pb2.ClientOnlyPlan.FromString(path.read_bytes())
        if not device.tflite_graph:
            return self._change_plan(folder)
        if self._rng.random() < 0.3:
            device.tflite_graph = self._flipped(device.tflite_graph)
        else:
            device.tflite_graph = self._other_flatbuffer(device.tflite_graph)
        path.write_bytes(device.SerializeToString())
        if self._rng.random() < 0.5:
            plan = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes())
            plan.client_tflite_graph_bytes = device.tflite_graph
            (folder / "plan.pb").write_bytes(plan.SerializeToString())
        return None

    def _other_flatbuffer(self, content: bytes) -> bytes:
        import flatbuffers
        from tensorflow.lite.python import schema_py_generated as schema

        model = schema.ModelT.InitFromPackedBuf(content, 0)
        for _ in range(self._rng.choice([1, 2, 4])):
            graph = self._rng.choice([*model.subgraphs, model.subgraphs[0]])
            if graph.operators:
                self._change_subgraph(model, graph, self._rng.choice(graph.operators))
        builder = flatbuffers.Builder(0)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _change_subgraph(self, model: Any, graph: Any, operator: Any) -> None:
        def a_tensor() -> int:
            fed = [int(index) for index in graph.inputs]
            return self._rng.choice([self._rng.randrange(len(graph.tensors)), *fed])

        kind = self._rng.randrange(8)
        if kind == 0 and len(operator.outputs):
            operator.outputs = [a_tensor() for _ in operator.outputs]
        elif kind == 1 and len(operator.inputs):
            operator.inputs = [a_tensor() for _ in operator.inputs]
        elif kind == 2:
            operator.opcodeIndex = self._rng.randrange(len(model.operatorCodes))
        elif kind == 3:
            at = self._rng.randrange(len(graph.operators) + 1)
            kept = list(graph.operators)
            graph.operators = [*kept[:at], operator, *kept[at:]]
        elif kind == 4:
            tensor = graph.tensors[a_tensor()]
            text = os.fsencode(self._text() or b"x")
            size = len(text).to_bytes(4, "little")
            content = (1).to_bytes(4, "little") + (12).to_bytes(4, "little")
            model.buffers[tensor.buffer].data = list(content + size + text)
        elif kind == 5:
            graph.tensors[a_tensor()].name = graph.tensors[a_tensor()].name
        elif kind == 6:
            graph.inputs = [a_tensor() for _ in graph.inputs]
        elif operator.customOptions is not None and len(operator.customOptions):
            changed = self._flipped(bytes(bytearray(operator.customOptions)))
            operator.customOptions = list(changed)

    def _text(self) -> bytes:
        return self._rng.choice([self._canary, self._rng.choice(self._texts)]).encode()

    def _number(self) -> int:
        return self._rng.choice([0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**62, -(2**63)])


if __name__ == "__main__":
    sys.exit(main())

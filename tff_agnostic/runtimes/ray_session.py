"""Starting, joining and authenticating a Ray.

From version 2.52 on Ray can ask for a token, and does so where `RAY_AUTH_MODE` says it: one that a
Ray of this process alone asks for, and the user's for a cluster.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import grpc
import ray
from ray import _raylet
from ray._private import services
from ray._private import worker as worker_module

from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.runtimes import ray_warden

_CONNECT_SECONDS = 10.0
_WARDEN_SECONDS = 20.0
_LOOPBACK = "127.0.0.1"
# What Ray says of a node that was not there in time.
_TOO_SLOW = "timed out during startup"
# What every Ray is asked first.
_FIRST_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
# Ray puts sockets below its folder, and their paths have at most 107 bytes.
_LONGEST_FOLDER = 40
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise it writes to this terminal what is no error here, such as that a worker has died.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's own choice is 15, with which workers starve where anything else runs.
    "RAY_worker_niceness": "0",
}
_RAY: Any = _raylet
_CAN_ASK = hasattr(_RAY, "AuthenticationTokenLoader")


@contextlib.contextmanager
def ray_session(address: str, start_seconds: float) -> Iterator[None]:
    """Connects this process to Ray for as long as the context lasts.

    A connection that this process has already is used, and left as it is.

    Args:
        address: "local" starts a Ray of this process's own, which listens on the loopback interface
            only, asks for a token that nobody else has (from Ray 2.52), and ends with this process,
            however that ends. "auto" finds the cluster that runs on this machine. HOST:PORT names
            one.
        start_seconds: How long a worker of a Ray that is started here may take to start.
    """
    if ray.is_initialized():
        yield
    elif address == "local":
        with contextlib.ExitStack() as stack:
            _start(stack, start_seconds)
            yield
    else:
        with _connected(_ENVIRONMENT, address=_reachable(address)):
            yield


def _start(stack: contextlib.ExitStack, start_seconds: float) -> None:
    """Starts a Ray that ends with `stack`, again if a try was too slow and there is time.

    Ray gives its node 30 seconds, and has no setting for them: a busy machine needs more. At the
    next try its files are in memory.
    """
    deadline = time.monotonic() + start_seconds
    while True:
        try:
            stack.enter_context(_own_ray(start_seconds))
            return
        except ExecutionError as e:
            if _TOO_SLOW not in str(e) or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def _own_ray(start_seconds: float) -> Iterator[None]:
    with (
        _folder_of_processes() as folder,
        _connected(
            {
                **_ENVIRONMENT,
                **new_token(),
                # After a minute, Ray by itself would end a process that starts and start anew.
                "RAY_worker_register_timeout_seconds": str(math.ceil(start_seconds)),
                ray_warden.VARIABLE: folder,
            },
            address="local",
            include_dashboard=False,
            num_cpus=len(os.sched_getaffinity(0)),
            _node_ip_address=_LOOPBACK,
            _temp_dir=folder,
        ),
    ):
        yield


@contextlib.contextmanager
def _connected(environment: Mapping[str, str], **arguments: Any) -> Iterator[None]:
    with _environment(environment), _handlers_kept(), _no_standard_error():
        read_environment()
        try:
            # What Ray has to say of a worker's death, in paragraphs, this package says in a line.
            worker_module.print_to_stdstream = lambda *_, **__: None
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **arguments)
        except Exception as e:
            # Of a node that takes too long to start, Ray raises no narrower one.
            raise _failure(arguments["address"], e) from e
    try:
        yield
    finally:
        with _handlers_kept():
            ray.shutdown()
        # This session's token is for no other.
        read_environment()


def _failure(address: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if address == "local":
        return ExecutionError(f"Ray did not start: {text}")
    return UserError(f"--ray_address={address}: cannot use the Ray there: {text}")


@contextlib.contextmanager
def _folder_of_processes() -> Iterator[str]:
    """A folder for a Ray's files; its processes end with the context, or with this process."""
    folder = tempfile.mkdtemp(prefix="tff_ray_")
    if len(folder) > _LONGEST_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="tff_ray_", dir="/tmp")
    # A session of its own: Ctrl-C in a terminal is not for it.
    warden = subprocess.Popen(
        [sys.executable, "-ES", ray_warden.__file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            warden.communicate(b"goodbye", timeout=_WARDEN_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables, for Ray's processes only: they are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_standard_error() -> Iterator[None]:
    """Drops what Ray's C++ code writes while it connects: that its log level was set."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, but it is the training loop's."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if in_main_thread and before is not None:
            signal.signal(signal.SIGTERM, before)


def _reachable(address: str) -> str:
    """Returns HOST:PORT where a Ray answers this user; Ray itself would try for minutes."""
    found = address
    if address == "auto":
        try:
            found = services.canonicalize_bootstrap_address_or_die("auto")
        except ConnectionError as e:
            raise UserError(
                "--ray_address=auto: no Ray runs on this machine: start one (ray start --head), "
                "name another's HOST:PORT, or leave it out to start one for this command"
            ) from e
    host, _, port = found.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise UserError(f"--ray_address: expected local, auto or HOST:PORT, found {address!r}")
    headers = token_headers()
    with grpc.insecure_channel(found) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
            channel.unary_unary(_FIRST_CALL)(b"", timeout=_CONNECT_SECONDS, metadata=headers)
        except grpc.FutureTimeoutError as e:
            raise UserError(
                f"--ray_address={address}: no Ray answers at {found} within "
                f"{_CONNECT_SECONDS:.0f} seconds"
            ) from e
        except grpc.RpcError as e:
            raise _refusal(address, found, bool(headers), e) from e
    return found


def _refusal(address: str, found: str, with_token: bool, error: grpc.RpcError) -> UserError:
    if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
        return UserError(
            f"--ray_address={address}: no Ray answers at {found}: {error.code().name.lower()}"
        )
    shown = "another than this process has" if with_token else "and this process shows none"
    return UserError(
        f"--ray_address={address}: the Ray there asks for a token, {shown}: set "
        "RAY_AUTH_MODE=token, and the token of its nodes as RAY_AUTH_TOKEN or in the file "
        "RAY_AUTH_TOKEN_PATH"
    )


def new_token() -> dict[str, str]:
    """Returns the environment of Ray's processes with which they ask for a new token.

    Empty for a Ray that cannot ask.
    """
    if not _CAN_ASK:
        return {}
    # Of all places of a token, Ray looks at this variable first.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def read_environment() -> None:
    """Makes the Ray of this process read its environment again, which it does only once."""
    if _CAN_ASK:
        _RAY.Config.initialize("")
        _RAY.AuthenticationTokenLoader.instance().reset_cache()


def token_headers() -> list[tuple[str, str]]:
    """Returns the headers that show this user's token to a cluster; none where none is wanted."""
    if not _CAN_ASK or _RAY.get_authentication_mode() != _RAY.AuthenticationMode.TOKEN:
        return []
    _check_file(os.environ.get("RAY_AUTH_TOKEN_PATH"))
    found = _RAY.AuthenticationTokenLoader.instance().get_token_for_http_header()
    if not found:
        raise UserError(
            "RAY_AUTH_MODE=token: expected the token of Ray's nodes as RAY_AUTH_TOKEN, or in the "
            "file RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token, found none"
        )
    return list(found.items())


def _check_file(path: Optional[str]) -> None:
    # Ray ends the process over such a file, without a word that a user sees.
    if not path or os.environ.get("RAY_AUTH_TOKEN"):
        return
    try:
        found = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise UserError(f"RAY_AUTH_TOKEN_PATH={path}: cannot read Ray's token: {reason}") from e
    if not found:
        raise UserError(f"RAY_AUTH_TOKEN_PATH={path}: expected Ray's token, found an empty file")

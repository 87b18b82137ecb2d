"""Reverse proxy in front of a SuperLink, which forwards only the requests that nodes need.

A SuperLink lets any client with the authority's certificate register nodes and start runs. Every
node has this certificate.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

# Beginning of the paths of nodes' requests, and path of the SuperLink's health check.
_PREFIX, _HEALTH = "/v1/fleet/", "/health"
_HOP_BY_HOP = frozenset(("connection", "host", "keep-alive", "transfer-encoding", "upgrade"))
_SECONDS = 60.0


def is_let_through(path: str) -> bool:
    """Whether the proxy forwards requests for a decoded path."""
    plain = not any(part in (".", "..") for part in path.split("/")) and "//" not in path
    return plain and (path == _HEALTH or path.startswith(_PREFIX))


def application(upstream: str, authority: Path) -> Starlette:
    """Returns the proxy of a SuperLink.

    Args:
        upstream: HOST:PORT of the SuperLink.
        authority: Certificate of the authority that signed the SuperLink's certificate.
    """
    context = ssl.create_default_context(cafile=str(authority))
    client = httpx.AsyncClient(
        base_url=f"https://{upstream}", verify=context, timeout=_SECONDS, trust_env=False
    )

    async def pass_on(request: Request) -> Response:
        if not is_let_through(request.url.path):
            return PlainTextResponse("not for nodes\n", status_code=403)
        try:
            answer = await client.request(
                request.method,
                request.url.path,
                params=request.query_params,
                headers=[(k, v) for k, v in request.headers.items() if k not in _HOP_BY_HOP],
                content=await request.body(),
            )
        except httpx.HTTPError:
            return PlainTextResponse("no SuperLink\n", status_code=503)
        kept = {
            k: v for k, v in answer.headers.items() if k not in (*_HOP_BY_HOP, "content-encoding")
        }
        return Response(answer.content, answer.status_code, kept)

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST"])])


def main() -> int:
    """Runs the proxy until a signal ends this process."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="HOST:PORT of the SuperLink")
    for name in ("authority", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    listening = socket.socket(socket.AF_INET6 if ":" in arguments.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((arguments.host, arguments.port))
    except OSError as e:
        print(f"error: {arguments.host}:{arguments.port}: {e.strerror}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        application(arguments.upstream, arguments.authority),
        ssl_certfile=arguments.certificate,
        ssl_keyfile=arguments.key,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())

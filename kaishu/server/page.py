"""GET / and /page/…: the chat in the browser, a folder of static files.

Owns the route, the files' types and the headers that keep the page to this server: no script or style but the page's
own files, no request to anywhere else. What the page does is in page/, a file for each idea; page/index.html is where
to begin. It needs no build: what is in the folder is what the browser gets.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kaishu.server.refusals import RefusedError

router = APIRouter()

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Strings become HTML by the sanitiser's hand or not at all.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Else a browser looks up the host of every link as soon as it is shown: a request that a model's answer could make.
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-cache",  # a browser asks each time whether its copy is still the newest
}


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page(request: Request) -> Response:
    """The page itself."""
    return await _answer(request, "index.html")


@router.api_route("/page/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    """A file of the page."""
    return await _answer(request, name)


async def _answer(request: Request, name: str) -> Response:
    content = await asyncio.to_thread(_content, name)
    if content is None:
        raise RefusedError(f"The page has no file {name[:80]!r}.", status=404, code="not_found", hint="It begins at /.")
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag, "Content-Type": _TYPES[Path(name).suffix]}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


def _content(name: str) -> bytes | None:
    """A file's bytes; None for what isn't one of the page's own files, wherever its name leads."""
    if name not in page_files():
        return None
    return (_FOLDER / name).read_bytes()


def page_files() -> tuple[str, ...]:
    """The names of all files that the page may ask for."""
    found = (path for path in _FOLDER.rglob("*") if path.suffix in _TYPES and path.is_file())
    return tuple(sorted(path.relative_to(_FOLDER).as_posix() for path in found))

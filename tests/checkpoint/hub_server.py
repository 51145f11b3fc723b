"""A model hub on 127.0.0.1 that answers as Hugging Face and ModelScope do, and misbehaves on request.

Owns the addresses, headers and JSON of both APIs, as far as a download needs them. Used by test_hub.py; started and
stopped by `serve`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """The models it has, how it behaves, and what it was asked."""

    models: dict[str, Mapping[str, bytes]]
    endpoint: str = ""
    gated: set[str] = field(default_factory=set)
    break_after_bytes: int | None = None  # close the connection after so many bytes of a weight file
    max_breaks: int = 1_000_000
    damage_weights: bool = False
    ignore_ranges: bool = False
    broken_status: int | None = None  # what every request is answered with
    redirect_weights_to: str | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def gets(self, pattern: str) -> list[dict[str, str]]:
        """The headers of all GETs whose path matches."""
        return [headers for method, path, headers in self.requests if method == "GET" and re.search(pattern, path)]


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def blob_id(contents: bytes) -> str:
    """What git calls a file's contents."""
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()


def is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin", ".gguf"))


@contextmanager
def serve(models: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    """Run a hub with these models: name → path → contents."""
    hub = Hub(dict(models))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        if self.hub.broken_status is not None:
            self._json({"error": "out of order"}, self.hub.broken_status)
            return
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = unquote(url.path)
        if match := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?", path):
            self._modelscope(match[1], query, is_list=bool(match[2]))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+))?/?", path):
            self._huggingface_api(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._huggingface_file(match[1], match[3])
        elif match := re.fullmatch(r"/elsewhere/([^/]+/[^/]+)/(.+)", path):
            self._send_file(match[2], self.hub.models[match[1]][match[2]], {})
        else:
            self._json({"error": "no such page"}, 404)

    def _huggingface_api(self, name: str, what: str | None, revision: str | None) -> None:
        if not self._may_have(name):
            return
        if revision not in (None, "main", COMMIT):
            self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        files = self.hub.models[name]
        lfs = {p: {"sha256": sha256(c), "size": len(c), "pointerSize": 134} for p, c in files.items() if is_large(p)}
        if what == "tree":
            entries: list[dict[str, Any]] = []
            for path, contents in files.items():
                entry: dict[str, Any] = {"type": "file", "path": path, "size": len(contents), "oid": blob_id(contents)}
                if path in lfs:
                    entry["lfs"] = {"oid": lfs[path]["sha256"], "size": len(contents), "pointerSize": 134}
                entries.append(entry)
            self._json(entries)
            return
        siblings = [
            {"rfilename": p, "size": len(c), "blobId": blob_id(c), **({"lfs": lfs[p]} if p in lfs else {})}
            for p, c in files.items()
        ]
        self._json({"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []})

    def _may_have(self, name: str) -> bool:
        if name not in self.hub.models:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return False
        if name in self.hub.gated and "Authorization" not in self.headers:
            self._json({"error": "restricted"}, 403, {"X-Error-Code": "GatedRepo"})
            return False
        return True

    def _huggingface_file(self, name: str, path: str) -> None:
        if not self._may_have(name):
            return
        contents = self.hub.models[name].get(path)
        if contents is None:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha256(contents) if is_large(path) else blob_id(contents)}"'}
        if is_large(path):
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(contents))}
            if self.hub.redirect_weights_to and self.command == "GET":
                headers["Location"] = f"{self.hub.redirect_weights_to}/elsewhere/{name}/{path}"
                self._json({}, 302, headers)
                return
        self._send_file(path, contents, headers)

    def _modelscope(self, name: str, query: Mapping[str, str], *, is_list: bool) -> None:
        if name not in self.hub.models or query.get("Revision") != "master":
            self._json({"Code": 10010205001, "Message": "the model or revision does not exist"}, 404)
        elif is_list:
            entries: list[dict[str, Any]] = [
                {"Path": p, "Name": p, "Type": "blob", "Size": len(c), "Sha256": sha256(c)}
                for p, c in self.hub.models[name].items()
            ]
            entries.append({"Path": "assets", "Name": "assets", "Type": "tree", "Size": 0, "Sha256": ""})
            self._json({"Code": 200, "Data": {"Files": entries}, "Success": True})
        else:
            self._send_file(query["FilePath"], self.hub.models[name][query["FilePath"]], {})

    def _send_file(self, path: str, contents: bytes, headers: Mapping[str, str]) -> None:
        if self.hub.damage_weights and is_large(path):
            contents = contents[:-1] + bytes([contents[-1] ^ 1])
        start, total = 0, len(contents)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and not self.hub.ignore_ranges:
            start = int(asked[1])
        self.send_response(206 if start else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        body, limit = contents[start:], self.hub.break_after_bytes
        if limit is not None and is_large(path) and self.hub.max_breaks > 0 and len(body) > limit:
            self.hub.max_breaks -= 1
            self.wfile.write(body[:limit])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Type": "application/json", "X-Repo-Commit": COMMIT, **(headers or {})}.items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

"""The page's files over HTTP: types, headers, what can't be asked for; and the libraries that stand with them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from kaishu.server import page
from kaishu.server.page import page_files

FOLDER = Path(page.__file__).parent / "page"
OWN_SCRIPTS = sorted(FOLDER.glob("*.js"))


@pytest.fixture
def client(scripted):
    return scripted().client


def test_the_page_and_each_of_its_files_come_with_their_types_and_a_strict_policy(client):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript"}
    kinds |= {".svg": "image/svg+xml", ".txt": "text/plain", ".md": "text/plain"}
    for path in ["/", *(f"/page/{name}" for name in page_files())]:
        answer = client.get(path)
        assert answer.status_code == 200
        kind = kinds[Path(path if path != "/" else "index.html").suffix]
        assert answer.headers["content-type"].partition(";")[0] == kind
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-dns-prefetch-control"] == "off"


def test_a_file_that_the_browser_has_isnt_sent_again(client):
    first = client.get("/page/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_what_asks_for_the_head_alone_gets_it(client):
    head, whole = client.head("/"), client.get("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]


@pytest.mark.parametrize(
    "name", ["../page.py", "..%2fpage.py", "%2e%2e/page.py", "/etc/passwd", "vendor", "", "main.js/", "a" * 5000, "%00"]
)
def test_nothing_but_the_pages_own_files_can_be_asked_for(client, name):
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_each_vendored_file_is_what_its_list_says_and_has_its_licence():
    listed = {}
    for line in (FOLDER / "vendor" / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"[0-9a-f]{64}", cells[5]):
            listed[cells[0]] = cells
    libraries = [path for path in (FOLDER / "vendor").iterdir() if path.suffix in {".js", ".mjs"}]
    assert sorted(listed) == sorted(path.name for path in libraries)
    for path in libraries:
        _, _, version, _, licence, digest = listed[path.name]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        assert version in path.read_text(encoding="utf-8")[:2000]
        assert (FOLDER / "vendor" / licence.split(", ")[-1]).exists()


def test_both_languages_have_the_same_words_with_the_same_places_in_them():
    said = {}
    for language in ("en", "zh"):
        source = (FOLDER / f"strings_{language}.js").read_text(encoding="utf-8")
        pairs = re.findall(r'^  (\w+):\s+"(.*)",$', source, re.MULTILINE)
        assert len(pairs) == source.count('",\n') > 100
        said[language] = {key: sorted(re.findall(r"\{(\w+)\}", words)) for key, words in pairs}
    assert said["en"] == said["zh"]


def test_every_word_that_is_used_exists_and_every_one_that_exists_is_used():
    sources = "".join(path.read_text(encoding="utf-8") for path in OWN_SCRIPTS if not path.name.startswith("strings_"))
    sources += (FOLDER / "index.html").read_text(encoding="utf-8")
    known = re.findall(r"^  (\w+):", (FOLDER / "strings_en.js").read_text(encoding="utf-8"), re.MULTILINE)
    of_settings = {f"{name}Hint" for name in known}  # their names are put together
    unused = [key for key in known if not re.search(rf"\b{key}\b", sources) and key not in of_settings]
    assert not unused
    used = re.findall(r'\b(?:text|say)\("(\w+)"', sources) + re.findall(
        r'data-(?:text|label|placeholder)="(\w+)"', sources
    )
    assert set(used) <= set(known)


@pytest.mark.parametrize("path", OWN_SCRIPTS, ids=lambda path: path.name)
def test_each_script_is_short_and_says_what_it_owns(path):
    source = path.read_text(encoding="utf-8")
    assert source.startswith("/**")
    assert len(source.splitlines()) <= 400
    assert max(len(line) for line in source.splitlines()) <= 120 or path.name.startswith("strings_")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    source = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", source)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", source) == [""]
    own = [*FOLDER.glob("*.js"), *FOLDER.glob("style/*.css"), FOLDER / "index.html"]
    for path in own:
        found = re.findall(r"(?:src|href|url\(|import|from)[=\s]*[\"']?https?://", path.read_text(encoding="utf-8"))
        assert not found, path.name

"""Pages of another site in a real browser, which can neither read from the service nor change it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.local.launcher import LocalService
from tests.pages.view.browser import WHERE, found

pytestmark = pytest.mark.service
PAGE = """<!doctype html><pre id="said"></pre><script>
const base = "URL", key = "KEY", said = [];
const json = {"Content-Type": "application/json", "X-API-Key": key};
const tries = [
  ["/api/v1/healthz", {}],
  ["/v1/models", {headers: {"Authorization": "Bearer " + key}}],
  ["/api/v1/create_session", {method: "POST", headers: json, body: "{}"}],
  ["/api/v1/sessions/SESSION/finish", {method: "POST", mode: "no-cors", body: "{}"}],
  ["/api/v1/sessions/SESSION/finish", {method: "POST", headers: json, body: "{}"}],
  ["/v1/models", {mode: "no-cors"}],
];
Promise.all(tries.map(async ([path, options]) => {
  try { const answer = await fetch(base + path, options); said.push("read:" + await answer.text()); }
  catch (error) { said.push("blocked"); }
})).then(() => { document.getElementById("said").textContent = said.sort().join("|"); });
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    where = found()
    if where is None:
        pytest.skip(f"no Chromium on the path, nor named by {WHERE}")
    return where


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Serve the pages of a folder as another site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def shown(browser: str, url: str, profile: Path) -> str:
    """Return a page's text after its scripts have run; evil.example resolves to this machine."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom")
    rules = ("--host-resolver-rules=MAP evil.example 127.0.0.1", f"--user-data-dir={profile}")
    done = subprocess.run([browser, *flags, *rules, url], capture_output=True, text=True, check=False)
    return done.stdout


def test_another_site_s_page_reads_nothing_and_causes_nothing(
    browser: str, site: str, service: LocalService, tmp_path: Path
) -> None:
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": service.api_key}) as http:
        session = http.post("/api/v1/create_session", json={}).json()["session_id"]
        # Even a page with the key.
        page = PAGE.replace("URL", service.base_url).replace("KEY", service.api_key)
        (tmp_path / "page.html").write_text(page.replace("SESSION", session))
        found = shown(browser, f"{site}/page.html", tmp_path / "profile")
        # A request without preflight has an answer that the page cannot read.
        assert '<pre id="said">blocked|blocked|blocked|blocked|read:|read:</pre>' in found
        assert http.post("/api/v1/session_heartbeat", json={"session_id": session}).status_code == 200


def test_a_name_that_was_made_to_lead_here_is_answered_by_nothing(
    browser: str, service: LocalService, tmp_path: Path
) -> None:
    port = service.base_url.rpartition(":")[2]
    ours = shown(browser, f"{service.base_url}/api/v1/healthz", tmp_path / "profile")
    assert '{"status":"ok"}' in ours
    for path in ("/api/v1/healthz", "/v1/models"):
        found = shown(browser, f"http://evil.example:{port}{path}", tmp_path / "profile")
        assert "call this service by an address" in found
        assert "status" not in found

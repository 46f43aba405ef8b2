"""Who may ask: hosts, origins and tokens on every method; headers on every answer; how much a body may have."""

import asyncio
from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fheat.studio.answers import Refused
from fheat.studio.app import create_app
from fheat.studio.guards import Bodies
from fheat.studio.settings import LOOPBACK, Limits, StudioSettings, check_address
from tests.refusals import refused
from tests.studio.conftest import TOKEN, client_of

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")
PATHS = ("/", "/api/health", "/api/scans?name=a.nii", "/api/jobs", "/assets/api.js", f"/s/{TOKEN}/info/")


@pytest.fixture(scope="module")
def client(settings, launcher):
    """One service for all tests here: refusals leave nothing behind."""
    with client_of(settings, launcher) as client:
        yield client


@pytest.fixture
def stranger(client):
    """The same client without the token."""
    header = client.headers.pop("Authorization")
    yield client
    client.headers["Authorization"] = header
    client.cookies.clear()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example:8000",
        "0.0.0.0:8000",
        "127.0.0.1",
        "127.0.0.1:8001",
        "127.0.0.1:8000@evil.example",
        "[::2]:8000",
        "",
    ],
)
def test_a_foreign_host_is_refused_on_every_method(client, method, host):
    for path in PATHS:
        answer = client.request(method, path, headers={"Host": host})
        assert answer.status_code == 400
        assert method == "HEAD" or "Host" in answer.json()["error"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "http://localhost", "null", "file://"],
)
def test_a_foreign_origin_is_refused_on_every_method(client, method, origin):
    for path in PATHS:
        answer = client.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_changes_nothing(client, method, site):
    for path in PATHS:
        assert client.request(method, path, headers={"Sec-Fetch-Site": site}).status_code == 403


@pytest.mark.parametrize("host", [*LOOPBACK, "LocalHost"])
def test_our_own_names_are_answered(client, host):
    headers = {"Host": f"{host}:8000", "Origin": f"http://{host.lower()}:8000", "Sec-Fetch-Site": "same-origin"}
    assert client.get("/api/jobs", headers=headers).status_code == 200
    assert client.delete("/api/jobs/1", headers=headers).status_code == 404


def test_two_hosts_are_no_host(client):
    answer = client.get("/api/health", headers=[("Host", "127.0.0.1:8000"), ("Host", "evil.example")])
    assert answer.status_code == 400


@pytest.mark.parametrize("method", METHODS)
def test_all_but_the_health_check_needs_the_token(stranger, method):
    for path in ("/api/scans?name=a.nii", "/api/jobs", "/docs", "/openapi.json", "/assets/api.js", "/s/wrong/info/"):
        assert stranger.request(method, path).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}x"}
        assert stranger.request(method, path, headers=bearer).status_code == 401
    expected = 200 if method in ("GET", "HEAD") else 401
    assert stranger.request(method, "/api/health").status_code in (expected, 405)


def test_the_token_becomes_a_cookie_of_this_port_alone(stranger):
    answer = stranger.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("fheat-8000=")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "domain" not in cookie.lower()
    assert TOKEN not in cookie
    assert stranger.get("/api/jobs").status_code == 200
    name, value = cookie.split(";")[0].split("=")
    stranger.cookies.clear()
    for wrong in (f"{name}={value}x", f"fheat-8001={value}", f"{name}={TOKEN}", f"{name}=", "=;;=,"):
        assert stranger.get("/api/jobs", headers={"Cookie": wrong}).status_code == 401


def test_a_person_without_the_token_is_told_what_to_do(stranger):
    for path in ("/", "/?token=wrong", "/runs"):
        answer = stranger.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 401
        assert "address that <code>fheat studio</code> printed" in answer.text
    assert stranger.get("/api/jobs").json()["remedy"].startswith("open the address")


def test_every_answer_has_the_security_headers(client):
    client.cookies.clear()
    for path in ("/api/health", "/api/nothing", "/docs", "/assets/../app.py", f"/?token={TOKEN}"):
        headers = client.get(path, follow_redirects=False).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] in ("no-store", "no-cache")
    assert client.get("/api/health", headers={"Host": "evil.example"}).headers["x-content-type-options"] == "nosniff"


def test_there_are_no_web_sockets(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/events"):
        pass


def test_bodies_of_questions_are_short(client):
    for content in (b"x" * 70_000, iter([b"x" * 40_000] * 2)):
        answer = client.post("/api/jobs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "65,536 bytes" in answer.json()["error"]


def test_packed_bodies_and_odd_lengths_are_refused(client):
    assert client.put("/api/scans?name=a.nii", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
    for length in ("-1", "1e3", "0x10", "\u0663"):
        headers = {"Content-Length": length.encode("utf-8")}
        assert client.put("/api/scans?name=a.nii", content=b"x", headers=headers).status_code == 400


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_of_another_page_starts_nothing(client, kind):
    """Requests of these types need no preflight, so no route that changes something takes them."""
    answer = client.post("/api/jobs", content=b'{"scan": "a", "model": "mini"}', headers={"Content-Type": kind})
    assert answer.status_code == 422


def test_names_behind_a_proxy(settings, launcher):
    with client_of(replace(settings, names=("studio.example.org",)), launcher) as client:
        headers = {"Host": "studio.example.org", "Origin": "https://studio.example.org"}
        assert client.get("/api/jobs", headers=headers).status_code == 200
        headers["Origin"] = "https://studio.example.org.evil.example"
        assert client.get("/api/jobs", headers=headers).status_code == 403


def test_other_addresses_need_a_token_of_some_length():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, None)
    for host in ("0.0.0.0", "192.168.0.7", "::", "studio.example.org"):
        assert "--token" in str(refused(check_address, host, None))
        check_address(host, "0123456789abcdef")
    for token in ("", "short", "x" * 201, "with blanks in the text", "slash/slash/slash/slash", "\u00e4" * 20):
        assert "is no token" in str(refused(check_address, "127.0.0.1", token))


def test_tokens_are_long_and_new_with_each_start():
    tokens = {StudioSettings().token for _ in range(20)}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 32


def test_what_nobody_foresaw_is_one_line_without_any_value(settings, launcher, capsys, monkeypatch):
    from fheat.studio import scans

    def fail(self, key):
        raise KeyError("Doe^Jane")

    monkeypatch.setattr(scans.Scans, "get", fail)
    app = create_app(settings, launcher=launcher)
    with TestClient(app, base_url="http://127.0.0.1:8000", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        answer = client.get("/api/scans/abc")
    assert answer.status_code == 500
    assert answer.json()["error"] == "an internal error happened (KeyError)"
    said = capsys.readouterr()
    assert "internal error (KeyError in fail, line" in said.err
    assert "Doe" not in said.err + said.out + answer.text


@pytest.mark.parametrize("limits", [Limits(silence=0.01), Limits(body_seconds=0.01)])
def test_a_silent_client_is_not_waited_for(limits):
    """The client sends a part and then nothing, and is refused; a wait for ever would hang this test."""
    sent = []

    async def receive():
        if sent:
            await asyncio.sleep(3600)
        sent.append(b"begin")
        return {"type": "http.request", "body": b"begin", "more_body": True}

    async def reading(scope, receive, send):
        while True:
            await receive()

    scope = {"type": "http", "method": "PUT", "path": "/api/scans", "headers": []}
    with pytest.raises(Refused) as caught:
        asyncio.run(Bodies(reading, limits)(scope, receive, None))
    assert caught.value.status_code == 408


def test_the_address_for_the_browser_opens_the_page_once(settings, launcher):
    with client_of(settings, launcher) as client:
        del client.headers["Authorization"]
        first = client.get(f"/?token={settings.once}", follow_redirects=False)
        client.cookies.clear()
        assert (first.status_code, client.get(f"/?token={settings.once}").status_code) == (303, 401)


def test_cookies_of_other_programs_do_not_matter(stranger):
    """Browsers send them to every port."""
    stranger.get(f"/?token={TOKEN}")
    ours = "; ".join(f"{name}={value}" for name, value in stranger.cookies.items())
    stranger.cookies.clear()
    assert stranger.get("/api/models", headers={"Cookie": f'pref={{"a": 1}}; {ours}'}).status_code == 200


def test_a_query_of_many_fields_is_no_error(stranger):
    assert stranger.get("/?" + "&" * 5000).status_code == 401

"""A real server: bodies in chunks, clients that leave or are slow, streams of events, many clients at once."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fheat.studio.settings import Limits
from tests.studio.conftest import TOKEN, server_for, until
from tests.studio.test_uploads import NIFTI

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server(settings, launcher):
    with server_for(replace(settings, port=0, limits=Limits(body=200_000)), launcher) as (port, service):
        yield port, service


def asked(port, method, path, body=None, headers=AUTHORISED, **options):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers, **options)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def opened(port, *lines):
    """Send the head of a request with the token and return its socket."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = [*lines, f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}", "", ""]
    client.sendall("\r\n".join(head).encode())
    return client


def left(service):
    return [path for part in ("scans", "jobs") for path in (service.folder / part).iterdir()]


def test_a_body_in_chunks_is_a_scan(server):
    port, service = server
    parts = (NIFTI[start : start + 50] for start in range(0, len(NIFTI), 50))
    status, content = asked(port, "PUT", "/api/scans?name=a.nii", parts, encode_chunked=True,
                            headers={**AUTHORISED, "Transfer-Encoding": "chunked"})  # fmt: skip
    assert status == 201, content
    assert asked(port, "DELETE", f"/api/scans/{json.loads(content)['scan']}")[0] == 200
    assert left(service) == []


def test_too_many_chunks_are_answered_in_the_middle(server):
    port, service = server
    client = opened(port, "PUT /api/scans?name=a.nii HTTP/1.1", "Transfer-Encoding: chunked")
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    for _ in range(7):  # over the limit, and without an end
        client.sendall(chunk)
    answer = client.recv(2000)
    assert b" 413 " in answer.split(b"\r\n")[0]
    client.close()
    until(lambda: left(service) == [])


def test_a_length_over_the_limit_is_refused_before_the_body(server):
    port, _ = server
    client = opened(port, "PUT /api/scans?name=a.nii HTTP/1.1", "Content-Length: 200001")
    assert b" 413 " in client.recv(2000).split(b"\r\n")[0]
    client.close()


def test_the_token_is_asked_for_before_the_body(server):
    port, _ = server
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(
        f"PUT /api/scans?name=a.nii HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 99\r\n\r\n".encode()
    )
    assert b" 401 " in client.recv(2000).split(b"\r\n")[0]
    client.close()


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server):
    port, service = server
    client = opened(port, "PUT /api/scans?name=a.nii HTTP/1.1", "Content-Length: 1000")
    client.sendall(bytes(100))
    until(lambda: left(service))
    client.close()
    until(lambda: left(service) == [])
    assert asked(port, "GET", "/api/health")[0] == 200


def test_slow_clients_keep_nobody_waiting(server):
    port, _ = server
    slow = [opened(port, "PUT /api/scans?name=a.nii HTTP/1.1", f"Content-Length: {len(NIFTI)}") for _ in range(20)]
    slow += [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
    for client in slow[20:]:
        client.sendall(b"GET /api/health HTT")  # a head without an end
    for client in slow[:20]:
        client.sendall(NIFTI[:10])
    assert asked(port, "GET", "/api/health", headers={})[0] == 200
    assert asked(port, "PUT", "/api/scans?name=a.nii", NIFTI)[0] == 201
    for client in slow[:20]:  # who is slow is served in the end
        client.sendall(NIFTI[10:])
        assert b" 201 " in client.recv(2000).split(b"\r\n")[0]
    for client in slow:
        client.close()


def lines_of(client, count):
    """Read so many events of a stream; return their numbers and what they say."""
    read, events = b"", []
    while len(events) < count:
        read += client.recv(2**16)
        whole = read.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]
        events = [part for part in whole if b"event: job" in part]
    found = []
    for event in events:
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
        found.append((int(fields[b"id"]), json.loads(fields[b"data"])))
    return found


def test_events_have_numbers_and_go_on_where_a_page_left(settings, launcher, scan_file):
    with server_for(replace(settings, port=0), launcher) as (port, _):
        client = opened(port, "GET /api/events HTTP/1.1")
        scan = json.loads(asked(port, "PUT", "/api/scans?name=a.nii.gz", scan_file.read_bytes())[1])["scan"]
        wanted = json.dumps({"scan": scan, "model": "mini"}).encode()
        assert asked(port, "POST", "/api/jobs", wanted, {**AUTHORISED, "Content-Type": "application/json"})[0] == 202
        until(lambda: json.loads(asked(port, "GET", "/api/jobs/1")[1])["state"] == "done")
        events = lines_of(client, 3)
        client.close()
        numbers = [number for number, _ in events]
        assert numbers == sorted(set(numbers))
        assert events[0][1]["state"] == "queued"
        assert "result" not in events[0][1]
        again = opened(port, "GET /api/events HTTP/1.1", f"Last-Event-ID: {numbers[0]}")
        assert lines_of(again, 2)[0] == events[1]
        again.close()
        for unknown in ("99999", "x", "-1", "9" * 40):  # then the state of everything comes first
            fresh = opened(port, "GET /api/events HTTP/1.1", f"Last-Event-ID: {unknown}")
            assert lines_of(fresh, 1)[0][1]["state"] == "done"
            fresh.close()


@pytest.mark.slow
def test_many_clients_at_once_get_2xx_4xx_or_503(server, scan_file):
    port, service = server
    scan, seen, health = scan_file.read_bytes(), [], []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            begin = time.monotonic()
            seen.append(asked(port, "GET", "/api/health", headers={})[0])
            health.append(time.monotonic() - begin)

    def client(number):
        for content in (scan, scan[: 100 * number], b"nonsense"):
            status, answer = asked(port, "PUT", "/api/scans?name=a.nii.gz", content)
            seen.append(status)
            if status == 201:
                key = json.loads(answer)["scan"]
                wanted = json.dumps({"scan": key, "model": "mini"}).encode()
                headers = {**AUTHORISED, "Content-Type": "application/json"}
                seen.append(asked(port, "POST", "/api/jobs", wanted, headers)[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    stop.set()
    watcher.join()
    assert set(seen) <= {200, 201, 202, 400, 422, 503}
    assert seen.count(201) >= 8
    assert health
    until(lambda: len(service.jobs) == 0)


@pytest.mark.slow
def test_the_starter_of_processes_may_die(settings, scan_file, model):
    """A service whose starter of processes is killed starts another one for the next job, and ends without a trace."""
    with server_for(replace(settings, port=0)) as (port, service):
        scan = json.loads(asked(port, "PUT", "/api/scans?name=a.nii.gz", scan_file.read_bytes())[1])["scan"]
        models = json.loads(asked(port, "GET", "/api/models")[1])
        assert {"mini", "la-4"} <= {one["id"] for one in models}
        starter = service.jobs._launcher._hosts[0]._process
        starter.kill()
        starter.wait()
        wanted = json.dumps({"scan": scan, "model": "mini"}).encode()
        headers = {**AUTHORISED, "Content-Type": "application/json"}
        number = json.loads(asked(port, "POST", "/api/jobs", wanted, headers)[1])["job"]
        until(lambda: json.loads(asked(port, "GET", f"/api/jobs/{number}")[1])["state"] == "done")
        folder = service.folder
    assert not folder.exists()

"""Ask a service for its health ten times a second: `python -m tests.attack.campaigns.health PORT`.

It is a process of its own, so that nothing else of a campaign makes it wait. At the end of standard input it prints a
JSON object: `seconds` of every answer, and `failures`. With 0 for the port it is a service itself, which does nothing
but answer, and prints its port: how long that takes is how long the machine lets everybody wait.
"""

import http.client
import http.server
import json
import sys
import threading
import time


class Idle(http.server.BaseHTTPRequestHandler):
    """Answers without doing anything."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def serve() -> None:
    """Answer until the input ends."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Idle) as server:
        print(server.server_port, flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()
        server.shutdown()


def measure(port: int) -> None:
    """Ask until the input ends; a new connection each time, as a monitor does."""
    over = threading.Event()
    seconds: list[float] = []
    failures: list[str] = []

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    while not over.wait(0.1):
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("GET", "/api/health")
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                failures.append(f"status {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(type(error).__name__)
        finally:
            connection.close()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "failures": failures}))


if __name__ == "__main__":
    serve() if sys.argv[1] == "0" else measure(int(sys.argv[1]))

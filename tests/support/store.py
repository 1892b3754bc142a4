"""An S3 server on the loopback address, which can be slow, refuse, or be away."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class Store:
    """moto's server of S3, with one bucket `runs`; `url` names the host, which is looked up."""

    def __init__(self) -> None:
        self.wait = 0.0
        self.refuses: bool | str = False  # every request, or those of one method
        self.asked: list[str] = []  # `PUT /runs/a.json`
        self._app: Callable[..., Any] = DomainDispatcherApplication(create_backend_app)
        self._port = 0
        self.come_back()
        self.url = f"http://localhost:{self._port}"

    def _answer(self, environment: dict[str, Any], start: Callable[..., Any]) -> Any:
        method = environment["REQUEST_METHOD"]
        self.asked.append(f"{method} {environment['PATH_INFO']}")
        time.sleep(self.wait)
        if self.refuses in (True, method):
            start("403 Forbidden", [("Content-Type", "application/xml")])
            said = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            return [] if method == "HEAD" else [said]
        return self._app(environment, start)

    def go_away(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def come_back(self) -> None:
        self._server = make_server("127.0.0.1", self._port, self._answer, threaded=True)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()


@contextmanager
def served() -> Iterator[Store]:
    """A store that this process, and those that it starts, reach by `s3://runs/...`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = Store()
    own = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store.url,
        "AWS_MAX_ATTEMPTS": "1",
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        boto3.client("s3").create_bucket(Bucket="runs")
        yield store
    finally:
        store.go_away()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

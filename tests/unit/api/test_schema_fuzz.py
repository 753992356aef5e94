"""Schemathesis over the OpenAPI document, against the real app on a real socket: whatever the document allows or
forbids, no answer is a server error, and every answer is one that the document names.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.services import ApiSettings
from deployments.api.tenants import TenantStore
from deployments.api.webhook_store import WebhookStore
from deployments.serve import free_port
from tests.unit.api.conftest import Forgotten, tiny_limits

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


ADMIN_KEY: Final = "the operator's own"


def make_app(url: str, folder: str) -> FastAPI:
    """Make the app as it is without API keys."""
    jobs = JobStore.connect(url, JobStoreConfig(max_unfinished_jobs=10**6))
    return create_api(ApiSettings(limits=tiny_limits()), jobs, ArtifactStore(folder), forget_source=Forgotten())


def make_keyed_app(url: str, folder: str) -> FastAPI:
    """Make the app with API keys, and so with the operator's routes."""
    return create_api(
        ApiSettings(limits=tiny_limits(), admin_key_sha256=hashlib.sha256(ADMIN_KEY.encode()).hexdigest()),
        JobStore.connect(url),
        ArtifactStore(folder),
        forget_source=Forgotten(),
        tenants=TenantStore.connect(url),
        webhooks=WebhookStore.connect(url),
    )


def operations_of(app: FastAPI) -> list[Any]:
    document = schemathesis.openapi.from_dict(app.openapi())
    return [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]


OPERATIONS: Final = operations_of(make_app("redis://nowhere", "nowhere"))
ADMIN_OPERATIONS: Final = [
    operation
    for operation in operations_of(make_keyed_app("redis://nowhere", "nowhere"))
    if operation.path.startswith("/admin")
]


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve the app from a thread; it has an event loop of its own, as its Redis client must."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def base_url(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(make_app(f"{valkey_url}?db=11", str(tmp_path_factory.mktemp("artifacts")))) as url:
        yield url


@pytest.fixture(scope="module")
def keyed_url(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(make_keyed_app(f"{valkey_url}?db=12", str(tmp_path_factory.mktemp("artifacts")))) as url:
        yield url


def check_answers(operation: Any, url: str, **options: Any) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=30, **options)

    holds()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_documented(operation: Any, base_url: str) -> None:
    check_answers(operation, base_url)


@pytest.mark.parametrize("operation", ADMIN_OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_to_the_operator_is_documented(operation: Any, keyed_url: str) -> None:
    check_answers(operation, keyed_url, headers={"Authorization": f"Bearer {ADMIN_KEY}"})

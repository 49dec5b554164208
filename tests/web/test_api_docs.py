"""The page of the HTTP API, and the OpenAPI document that it is made from."""

from __future__ import annotations

import re

from duetime import Duetime
from duetime.web.dashboard.api_docs import read_nouns
from duetime.web.service import make_service
from tests.web.conftest import Running


def test_every_operation_is_described() -> None:
    document = make_service(Duetime("sqlite:///unused.db")).openapi()
    operations = [one for path in document["paths"].values() for one in path.values()]

    assert document["openapi"].startswith("3.1")
    ids = [one["operationId"] for one in operations]
    assert len(ids) == len(set(ids)) > 100
    for one in operations:
        assert len(one["tags"]) == 1, one["operationId"]
        assert one["summary"] != one["operationId"]
        assert {"401", "403", "422"} <= set(one["responses"])
    with_example = [
        one
        for one in operations
        if "example" in one.get("requestBody", {}).get("content", {}).get("application/json", {})
    ]
    assert len(with_example) > 20


def test_examples_of_bodies_are_valid() -> None:
    document = make_service(Duetime("sqlite:///unused.db")).openapi()
    for operations in read_nouns(document).values():
        for operation in operations:
            found = re.search(r"-d '(.*)'$", operation.curl)
            if found is None:
                continue
            names = {field.name for field in operation.body}
            example = document["paths"][operation.path][operation.method.lower()]["requestBody"]
            given = example["content"]["application/json"]["example"]
            required = {field.name for field in operation.body if field.required}
            assert required <= given.keys() <= names, operation.id


async def test_the_page_shows_every_operation(service: Running) -> None:
    client = await service.browse()
    document = service.service.openapi()

    page = await client.get("/api/docs", headers={"accept": "text/html"})

    assert page.status_code == 200
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f'id="{operation["operationId"]}"' in page.text
            assert f"<code>{method.upper()} {path}</code>" in page.text


async def test_every_link_of_the_navigation_opens(service: Running) -> None:
    client = await service.browse()
    now = await client.get("/", headers={"accept": "text/html"})
    links = re.findall(r'class="item" href="([^"]+)"', now.text)

    answers = {link: (await client.get(link)).status_code for link in links}

    assert "/api/docs" in answers
    assert set(answers.values()) == {200}, answers

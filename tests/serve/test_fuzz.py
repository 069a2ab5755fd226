"""Whatever the OpenAPI document allows, and what it does not, is answered without a 5xx and as it says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatf.serve.app import build
from gatf.serve.limits import Limits
from gatf.serve.studio import Options

from .conftest import png
from .server import Client, form, serving

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5,
)  # fmt: skip
DOCUMENT = build(Options(Path("none.gatf")))[0].openapi()
PROCESSES = ("/v1/merge", "/v1/forget", "/v1/rename", "/v1/rollback")
"""Addresses that start a process for most requests."""
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a schema allows."""
    if "$ref" in schema:
        return values(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            needed = set(schema.get("required", ()))
            fields = {name: values(field) for name, field in schema["properties"].items()}
            optional = {name: field for name, field in fields.items() if name not in needed}
            return st.fixed_dictionaries({name: fields[name] for name in needed}, optional=optional)
        case "array":
            return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.floats(schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"), allow_nan=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    raise AssertionError(f"the document has a schema that this test does not know: {schema}")


@st.composite
def requests(draw: st.DrawFn, path: str, method: str) -> tuple[str, bytes | None, dict[str, str]]:
    """An address with parameters, a body and its type: as the document says, or not quite."""
    reported = DOCUMENT["paths"][path][method]
    query = {}
    for parameter in reported.get("parameters", ()):
        value = draw(values(parameter["schema"]) | st.text(max_size=10))
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(str(value), safe="") or "x")
        elif value is not None and draw(st.booleans()):
            query[parameter["name"]] = value
    address = path + (f"?{urlencode(query, errors='surrogatepass')}" if query else "")
    if "requestBody" not in reported:
        return address, None, {}
    content = reported["requestBody"]["content"]
    kind = draw(st.sampled_from([*content, "text/plain", ""]))
    if kind == "multipart/form-data" and draw(st.booleans()):
        part = st.tuples(st.sampled_from([*content[kind]["schema"]["properties"], "other"]), st.binary(max_size=40))
        body, kind = form(draw(st.lists(part, max_size=4)))
        return address, body[: draw(st.sampled_from([len(body), len(body) // 2]))], {"content_type": kind}
    if kind == "application/json" and draw(st.booleans()):
        body = json.dumps(draw(values(content[kind]["schema"]) | ANYTHING)).encode()
        return address, body, {"content_type": kind}
    return address, draw(st.binary(max_size=60)), {"content_type": kind}


@pytest.fixture(scope="module")
def client(shop: Path) -> Iterator[Client]:
    with serving(Options(shop, limits=Limits(seconds=20))) as (client, _):
        yield client


def test_the_document_describes_every_address() -> None:
    assert len(OPERATIONS) >= 15
    for path, method in OPERATIONS:
        reported = DOCUMENT["paths"][path][method]
        assert reported["description"], path
        assert "4XX" in reported["responses"], path


@pytest.mark.parametrize(("path", "method"), [item for item in OPERATIONS if "onnx" not in item[0]])
def test_nothing_that_is_sent_breaks_the_server(client: Client, path: str, method: str) -> None:
    takes = any(key in DOCUMENT["paths"][path][method] for key in ("parameters", "requestBody"))

    @settings(
        max_examples=(4 if path in PROCESSES else 20) if takes else 1, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(requests(path, method))
    def check(request: tuple[str, bytes | None, dict[str, str]]) -> None:
        address, body, headers = request
        reply = client(method.upper(), address, body, **headers)
        assert reply.status < 500, (reply.status, reply.body)
        if reply.status >= 400:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json["status"] == reply.status

    check()


def test_responses_match_the_openapi_document(client: Client) -> None:
    import numpy as np

    picture = png(np.zeros((8, 8), np.uint8))
    reply = client.send("/v1/predict?top=2&certificate=true&explain=true", [("image", picture)])
    for path, reported in (
        ("/v1/predict", reply.json), *((path, client.get(path).json) for path in
                                       ("/v1/classes", "/v1/model", "/v1/map", "/v1/updates", "/healthz")),
    ):  # fmt: skip
        operation = DOCUMENT["paths"][path]["post" if path == "/v1/predict" else "get"]
        conforms(reported, operation["responses"]["200"]["content"]["application/json"]["schema"])


def conforms(value: Any, schema: dict[str, Any]) -> None:
    """Every field that the schema has, and no other, with values of its type."""
    if "$ref" in schema:
        return conforms(value, DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in schema:
        assert any(_fits(value, one) for one in schema["anyOf"]), (value, schema)
        return None
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    if schema.get("type") == "null":
        assert value is None
    elif "type" in schema:
        assert isinstance(value, types[schema["type"]]), (value, schema)  # type: ignore[arg-type]
    for name, field in schema.get("properties", {}).items():
        conforms(value[name], field)
    if "properties" in schema:
        assert set(value) <= set(schema["properties"])
    for item in value if "items" in schema else ():
        conforms(item, schema["items"])
    return None


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    try:
        conforms(value, schema)
    except AssertionError:
        return False
    return True

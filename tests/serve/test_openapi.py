"""The server against its own description: schemathesis sends what the schema allows and what it
does not, and every answer must be one that the description promises."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.serve.live import Live, serving
from tests.serve.scripted import ScriptedEngine

EXAMPLES = 20  # a route and mode
ROUTES = {
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"),
}
BODIES = [route for route in sorted(ROUTES) if route[1].endswith(("completions", "tokenize"))]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
# Whether a body that fits the schema is taken depends on more than the schema (the context, other
# fields), so that one check is left out.
LEFT_OUT = ("positive_data_acceptance",)


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with serving(ScriptedEngine(lambda asked: "ok")) as live:
        yield live


@pytest.fixture(scope="module")
def schema(served: Live) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", sorted(ROUTES), ids=lambda route: route[1])
def test_every_answer_is_as_described(
    schema: Any, served: Live, route: tuple[str, str], mode: GenerationMode
) -> None:
    method, path = route
    if mode is GenerationMode.NEGATIVE and route not in BODIES:
        return  # there is nothing to get wrong
    left_out = [check for check in CHECKS.get_all() if check.__name__ in LEFT_OUT]

    @settings(
        max_examples=EXAMPLES if route in BODIES else 1,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        response = case.call(session=session)
        case.validate_response(response, excluded_checks=left_out)

    with requests.Session() as session:
        holds()
    assert served.engine.idle()


def test_every_route_is_described(served: Live) -> None:
    described = served.get("/openapi.json").json()
    routes = {(m.upper(), path) for path, item in described["paths"].items() for m in item}
    assert routes == ROUTES
    text = json.dumps(described)
    assert "HTTPValidationError" not in text and '"422"' not in text

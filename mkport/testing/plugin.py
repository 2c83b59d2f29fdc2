"""The pytest plugin that comes with mkport: the fixture `check_op`, for ops of any repository.

def test_my_op(check_op):
    check_op(OP)                                  # every form that has its files
    check_op(OP, form="solo", dtype="f32", shapes={"odd": {"tokens": 3, "n": 77}})
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mkport.declare import Op


@pytest.fixture
def check_op() -> Callable[..., None]:
    """A function that fails the test unless the op is lawful and bit-equal.

    Takes the arguments of `mkport.testing.check_op`. Without `form` it checks standalone, ported
    and solo; the step form needs a model that holds the op.
    """
    from mkport.testing.check import check_op as check

    def checked(op: "Op", form: str | None = None, **options: Any) -> None:
        for one in (form,) if form else ("standalone", "ported", "solo"):
            for verdict in check(op, form=one, **options):  # type: ignore[arg-type]
                assert verdict.ok, (
                    f"{verdict.op} {verdict.form} on {verdict.shape!r} ({verdict.dtype}): error "
                    f"{verdict.error:.2e}, allowed {verdict.allowed:.2e}; {verdict.detail}"
                )

    return checked

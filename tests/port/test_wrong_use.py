"""What cannot be meant is said in a sentence, before anything is compiled."""

from pathlib import Path
from typing import Any

import pytest

from mkport.errors import UserError
from mkport.port.port import port_file


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"arguments": ["x=f32[99999999999]", "n=4"]}, "x would have more than"),
        ({"arguments": ["x=f32[4]=5e9", "x=f32[65536,65536]=1", "n=4"]}, "x would have more than"),
        ({"arguments": ["x=f32[4]", "n=4294967296"]}, "n is int, and 4294967296 is none"),
        ({"arguments": ["x=i32[4]", "n=4"]}, "An array of int32 is given"),
        ({"instantiate": "plain<4>"}, "plain is no template"),
        ({"instantiate": "x<"}, "plain is no template"),
    ],
)
def test_wrong_options_of_a_port(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.cu"
    path.write_text("__global__ void plain(float* x, int n) { if (threadIdx.x < n) x[0] = n; }\n")
    with pytest.raises(UserError, match=why):
        port_file(path, block=(32, 1, 1), grid=(1, 1, 1), compile=False, **options)

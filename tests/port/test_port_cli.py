"""The verb `port`: exit codes, JSON, what it writes and when."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.machines.host.build import compiler
from mkport.testing.parts import load_file

HERE = Path(__file__).parent
CLI = CliRunner()
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


def test_a_refusal_has_exit_code_3_and_says_what_decided_alone(tmp_path: Path) -> None:
    file = HERE / "refused" / "MK130.cu"
    done = CLI.invoke(app, ["port", str(file), "--block", "256", "-o", str(tmp_path)])
    assert done.exit_code == 3 and "MK130 MK130.cu:5" in done.output
    lines = done.output.splitlines()
    heads = [" ".join(line.split()) for line in lines if line[:2].strip().isdigit()]
    assert heads == [
        "1 scan ok", "2 to 3 ok", "4 control flow refused", "5 to 7 ok", "8 to 11 not reached",
        "12 result refused",
    ]  # fmt: skip
    (place,) = (n for n, line in enumerate(lines) if "MK130 MK130.cu:5" in line)
    assert lines[place + 1].startswith("       In a megakernel the threads that skip it")
    assert lines[place + 2].startswith("       Let every thread reach the barrier")
    assert lines[place + 3].startswith(" 5 to 7")
    assert not list(tmp_path.iterdir())


def test_json_says_the_same() -> None:
    file = HERE / "refused" / "MK130.cu"
    done = CLI.invoke(app, ["port", f"{file}:turn", "--block", "256", "--json"])
    said = json.loads(done.stdout)
    assert done.exit_code == 3 and said["verdict"] == "refused"
    (finding,) = said["findings"]
    assert finding["code"] == "MK130" and finding["line"] == 5 and finding["file"] == "MK130.cu"
    assert {"cause", "consequence", "fix", "title"} <= set(finding)
    assert [step["number"] for step in said["steps"]] == list(range(1, 13))


@needs_compiler
def test_a_port_is_run_and_written(tmp_path: Path) -> None:
    file = tmp_path / "add.cu"
    file.write_text(
        "__global__ void add(const float* x, float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = x[i] + 1;\n"
        "}\n"
        "void launch(float* x, float* y, int n) { add<<<3, 64>>>(x, y, n); }\n"
    )
    options = ["--arg", "x=f32[150]", "--arg", "y=f32[192]", "--arg", "n=150"]
    quiet = CLI.invoke(app, ["port", str(file), *options])
    assert quiet.exit_code == 0, quiet.output
    assert "the port has the same bits" in quiet.output
    assert [path.name for path in tmp_path.iterdir()] == ["add.cu"]
    done = CLI.invoke(app, ["port", str(file), "--no-run", "-o", str(tmp_path / "ops")])
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "ops" / "add").iterdir()}
    assert names == {"op.py", "task.cuh", "standalone.cu", "port.json"}
    op = load_file(tmp_path / "ops" / "add" / "op.py").OP
    assert [arg.name for arg in op.args] == ["x", "y", "n", "grid_x"]


@needs_compiler
def test_an_original_that_races_has_exit_code_4(tmp_path: Path) -> None:
    file = tmp_path / "race.cu"
    file.write_text(
        "__global__ void race(const float* x, float* y) {\n"
        "  __shared__ float s[64];\n"
        "  s[threadIdx.x] = x[threadIdx.x];\n"
        "  y[threadIdx.x] = s[63 - threadIdx.x];\n"
        "}\n"
    )
    for options in ([], ["--arg", "x=f32[64]", "--arg", "y=f32[64]", "--grid", "1"]):
        done = CLI.invoke(app, ["port", str(file), "--block", "64", *options])
        assert done.exit_code == 4, done.output
        assert "MK201 race.cu:" in done.output and "not well defined" in done.output


@needs_compiler
def test_arguments_out_of_bounds_are_the_originals_when_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "far.cu"
    file.write_text("__global__ void far(float* x, int n) { x[n * 40 + threadIdx.x] = 1; }\n")
    given = ["--arg", "x=f32[64]", "--arg", "n=1"]
    done = CLI.invoke(app, ["port", str(file), "--block", "32", "--grid", "1", *given])
    assert done.exit_code == 4 and "MK203 far.cu:1" in done.output
    far = file.read_text().replace("40", "100000000")
    file.write_text(far)
    done = CLI.invoke(app, ["port", str(file), "--block", "32", "--grid", "1"])
    assert done.exit_code == 0 and "No made-up arguments fit far" in done.output
    assert "ported, but not run here" in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--grid", "a,b"], "is not one to three numbers"),
        (["--arg", "z=1"], "does not name a parameter"),
        (["--arg", "x=f32[4"], "write TYPE[SIZES]"),
        (["--arg", "x=f32[4]"], "has no value for n"),
        (["--instantiate", "other<float>"], "but the kernel is turn"),
        (["--define", "1=2"], "is no macro"),
    ],
)
def test_wrong_use_has_exit_code_2(options: list[str], said: str) -> None:
    file = HERE / "refused" / "MK130.cu"
    done = CLI.invoke(app, ["port", f"{file}:turn", "--block", "256", *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_file_that_is_not_there() -> None:
    done = CLI.invoke(app, ["port", "nowhere.cu"])
    assert done.exit_code == 2 and "nowhere.cu cannot be read" in done.output

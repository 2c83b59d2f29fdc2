"""`mkport new`: what it writes passes as it is, and what cannot be a new op is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.errors import UserError
from mkport.extras import tool
from mkport.library import all_ops, find_op, ops_in
from mkport.port.scaffold import FILES, check_name, new_op
from mkport.testing.suite import has_form

ROOT = Path(__file__).parents[2]


def test_what_is_written_passes_its_own_test_from_another_folder(tmp_path: Path) -> None:
    new_op("half_of", tmp_path / "ops")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mkport.testing.plugin", "ops"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=_environment(), timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout or "1 passed, 1 skipped" in done.stdout


def _environment() -> dict[str, str]:
    import os

    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # the plugin is named on the command line: where mkport is installed it would come twice
    found = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return os.environ | found | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_a_wrong_body_fails_its_test(tmp_path: Path) -> None:
    new_op("third_of", tmp_path)
    standalone = tmp_path / "third_of" / "standalone.py"
    standalone.write_text(standalone.read_text().replace("= factor *", "= factor +"))
    arguments = ["check", "third_of", "--ops", str(tmp_path), "--form", "standalone", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert not any(v["ok"] for v in json.loads(done.stdout)["verdicts"])


def test_the_verb_says_what_it_wrote_and_the_ops_are_found(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", "scale_by", "--ops", str(tmp_path), "--json"])
    files = json.loads(done.stdout)["files"]
    assert {Path(file).name for file in files} == {*FILES, "test_scale_by.py"}
    assert not [text for file in files if "example" in (text := Path(file).read_text())]
    assert "struct scale_by : MkBody" in (tmp_path / "scale_by" / "task.cuh").read_text()
    assert "ScaleByArgs" in (tmp_path / "scale_by" / "task.cuh").read_text()
    listed = json.loads(CliRunner().invoke(app, ["list", "--ops", str(tmp_path), "--json"]).stdout)
    assert [entry["op"] for entry in listed] == ["scale_by"]
    assert set(ops_in(tmp_path)) == set(ops_in(tmp_path / "scale_by")) == {"scale_by"}


def test_a_folder_with_a_space_is_quoted_in_what_to_run_next(tmp_path: Path) -> None:
    ops = tmp_path / "my ops"
    shown = CliRunner().invoke(app, ["new", "scale_by", "--ops", str(ops)]).stdout
    assert f"{tool('mkport')} check scale_by --ops '{ops}' --machine host" in shown
    assert f"{tool('pytest')} '{ops / 'test_scale_by.py'}'" in shown


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    new_op("mine", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="is there already"):
        new_op("mine", tmp_path)
    (tmp_path / "test_yours.py").write_text("# mine\n")
    with pytest.raises(UserError, match="test_yours.py is there already"):
        new_op("yours", tmp_path)
    assert not (tmp_path / "yours").exists()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("9x", "cannot be an op's name"), ("Big", "lower-case"), ("a-b", "0-9 and _"),
        ("lambda", "a word of Python"), ("sum", "a word of Python"), ("template", "a word of C"),
        ("dot_tile", "a primitive"), ("mk_mine", "mk_ is for"), ("join", "megakernel"),
        ("x" * 41, "at most 39"), ("../up", "cannot be"),
    ],
)  # fmt: skip
def test_a_name_that_no_op_can_have(name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_name(name)


def test_a_folder_without_ops_and_files_that_declare_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no op in"):
        ops_in(tmp_path)
    for number, (text, why) in enumerate(
        (("OP = 3\n", "declares no op"), ("OP =\n", "SyntaxError"), ("import nothing_here\n", "No"))
    ):
        (tmp_path / f"bad{number}").mkdir()
        (tmp_path / f"bad{number}" / "op.py").write_text(text)
        with pytest.raises(UserError, match=why):
            ops_in(tmp_path / f"bad{number}")


def test_two_ops_of_one_name(tmp_path: Path) -> None:
    new_op("same", tmp_path)
    (tmp_path / "same").rename(tmp_path / "other")
    (tmp_path / "test_same.py").unlink()
    new_op("same", tmp_path)
    with pytest.raises(UserError, match="Rename one of the two"):
        ops_in(tmp_path)


def test_the_nearest_op_of_the_folder_is_named(tmp_path: Path) -> None:
    new_op("rotate", tmp_path)
    with pytest.raises(UserError, match="did you mean rotate"):
        find_op("rotat", ops_in(tmp_path))


def test_an_op_that_is_named_as_one_of_the_library_is_not_in_its_steps(tmp_path: Path) -> None:
    new_op("gemm", tmp_path)
    assert has_form(all_ops()["gemm"], "step") and not has_form(ops_in(tmp_path)["gemm"], "step")

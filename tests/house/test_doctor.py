"""`mkport doctor`: each thing that can be absent is named together with its fix."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mkport import bandwidth, doctor
from mkport.cache import CACHE_VARIABLE
from mkport.cli import main
from mkport.extras import install_model


@pytest.fixture(autouse=True)
def quick_and_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "read_bandwidth", lambda threads: 1e9)


def _rows() -> dict[str, doctor.Row]:
    return {row.name: row for row in doctor.examine()}


def test_what_is_absent_says_why_and_what_to_do() -> None:
    for row in doctor.examine():
        assert row.value
        assert row.status in {"ok", "missing", "optional"}
        if row.status != "ok":
            assert row.why


def test_an_absent_core_package_is_missing_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "gguf" else version(name))
    assert _rows()["gguf"].status == "missing"
    assert _rows()["gguf"].fix.endswith("pip install gguf")
    done = CliRunner().invoke(main.app, ["doctor", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["ready"] is False


def test_an_absent_oracle_package_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else version(name))
    assert _rows()["torch"].status == "optional"
    assert CliRunner().invoke(main.app, ["doctor"]).exit_code == 0


def test_an_absent_model_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MODEL_PACKAGE", "no_such_model_package")
    assert _rows()["demo model"].fix == install_model()


def test_a_cache_that_cannot_be_written_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    assert _rows()["cache folder"].status == "missing"
    assert CACHE_VARIABLE in _rows()["cache folder"].fix


def test_a_machine_without_tools_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert _rows()["C++ compiler"].status == "optional"
    assert _rows()["GPU"].value == "none"


def test_a_gpu_is_named_and_cupy_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor, "_output", lambda command: "NVIDIA H200, 143771 MiB, 570.1")
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert _rows()["GPU"].status == "ok"
    assert "H200" in _rows()["GPU"].value
    assert "[cuda13]" in _rows()["cupy"].fix


def test_text_names_every_row() -> None:
    done = CliRunner().invoke(main.app, ["doctor"], env={"COLUMNS": "200"})
    for row in doctor.examine():
        assert row.name in done.stdout


def test_the_measured_bandwidth_is_bytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.25, 1.0, 1.5])  # two rounds: 0.25 s, then 0.5 s
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: next(ticks))
    assert bandwidth.read_bandwidth(threads=2, megabytes=1, rounds=2) == 2**20 / 0.25

"""An untrusted configuration file is read or refused in one line; it imports and builds nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nest_ssl.config.compose import CommandLine, compose, load_config
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.training.run import main

CONFIG = Path(__file__).parents[2] / "config"
MAIN = "nest_fast-conformer"


def write(folder: Path, text: str | bytes) -> Path:
    (folder / "foreign.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def load(folder: Path, *overrides: str) -> Any:
    return load_config(CommandLine(folder, "foreign", list(overrides)))


def refused(folder: Path, message: str, *overrides: str) -> None:
    before, started = sorted(folder.rglob("*")), time.process_time()
    with pytest.raises(ConfigError, match=message) as caught:
        load(folder, *overrides)
    assert "\n" not in str(caught.value)
    assert time.process_time() - started < 60
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that creates a file when it is imported; returns the path of this file, which does not exist yet."""
    trace = tmp_path / "it ran"
    (tmp_path / "packages" / "payload").mkdir(parents=True)
    (tmp_path / "packages" / "payload" / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    return trace


SEARCH = "hydra: {searchpath: [SCHEME://payload]}\n"


@pytest.mark.parametrize("scheme", ["pkg", "structured"])
@pytest.mark.parametrize(
    "text",
    [SEARCH, "hydra: {searchpath: ['${where}']}\nwhere: SCHEME://payload\n", "defaults: [_self_]\n" + SEARCH],
)
def test_a_search_path_imports_nothing(text: str, scheme: str, payload: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "config").mkdir()
    text = text.replace("SCHEME", scheme)
    refused(write(folder, text), rf"^hydra\.searchpath: '{scheme}://payload' refused: it would run Python code")
    assert not payload.exists()
    write(folder, text)  # Hydra alone imports it, so this test can fail
    with initialize_config_dir(str(folder), version_base="1.3"), contextlib.suppress(HydraException):
        hydra_compose("foreign")
    assert payload.exists()


class _PluginSource(FileConfigSource):
    """A source of configurations as a plugin of Hydra might add it."""

    @staticmethod
    def scheme() -> str:
        return "plugin"

    def __init__(self, provider: str, path: str) -> None:
        raise AssertionError("it was used")


def test_sources_of_plugins_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose(CONFIG, MAIN, [])
    monkeypatch.setitem(SourcesRegistry.instance().types, "plugin", _PluginSource)
    refused(write(tmp_path, SEARCH.replace("SCHEME", "plugin")), "No config source registered for schema plugin")
    assert SourcesRegistry.instance().types["plugin"] is _PluginSource  # other users of Hydra still have it


def test_files_of_other_folders_are_refused(tmp_path: Path) -> None:
    for folder in ("config", "config/below", "config2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"in_{folder[-5:]}.yaml").write_text("name: x\n")
    folder = tmp_path / "config"
    for elsewhere in (f"{tmp_path.as_posix()}/config2", f"file://{tmp_path.as_posix()}/config2"):
        text = f"hydra: {{searchpath: ['{elsewhere}']}}\n"
        refused(write(folder, text), r"^hydra\.searchpath: '.*config2' refused: it is not below")
    refused(write(folder, "defaults: [../config2/in_nfig2]"), r"^defaults: '\.\./config2/in_nfig2' refused")
    write(folder, f"hydra: {{searchpath: ['{tmp_path.as_posix()}/config/below']}}\ndefaults: [in_below]\n")
    assert compose(folder, "foreign", []).name == "x"


@pytest.mark.parametrize(
    "text",
    [
        "hydra: {callbacks: {x: {_target_: payload.Callback}}}",
        "hydra: {launcher: {_target_: payload.Launcher}}",
        "hydra: {sweeper: {_target_: payload.Sweeper}}",
        "hydra: {job_logging: {version: 1, handlers: {x: {'()': payload.Handler, class: payload.Handler}}}}",
        "hydra: {hydra_logging: {version: 1, handlers: {x: {class: payload.Handler}}}}",
        "hydra: {run: {dir: '${oc.create:payload}'}}",
        "defaults: [{override hydra/launcher: payload}]",
        "defaults: [{/hydra/callbacks: payload}]",
        "defaults: ['pkg://payload/x']",
        "defaults: ['structured://payload']",
        "defaults: ['pkg:payload']",
        "defaults: [/payload@_global_]",
    ],
)
def test_the_node_of_hydra_imports_nothing(text: str, payload: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "config").mkdir()
    with contextlib.suppress(ConfigError):
        load(write(folder, text))
    assert not payload.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipes_cause_no_wait(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    os.mkfifo(tmp_path / "group" / "bad.yaml")
    refused(write(tmp_path, "defaults: [{group: bad}]"), "Could not find 'group/bad'")
    (tmp_path / "foreign.yaml").unlink()
    os.mkfifo(tmp_path / "foreign.yaml")
    refused(tmp_path, r"--config-name: .*foreign\.yaml: is not a regular file \(a named pipe\)")


def test_hydra_reads_files_as_usual_afterwards(tmp_path: Path) -> None:
    compose(CONFIG, MAIN, [])
    with initialize_config_dir(str(CONFIG), version_base="1.3"):
        assert hydra_compose(MAIN).model.num_books == 1


def laughs(levels: int) -> str:
    lines = ["l0: &l0 [x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


def doubling_tables(levels: int) -> str:
    tables = [f"t{i}: {{l: '${{t{i + 1}}}', r: '${{t{i + 1}}}'}}" for i in range(levels)]
    return "\n".join([*tables, f"t{levels}: {{x: 1}}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (laughs(30), "its aliases unfold to more than 10000 values"),
        ("a: &a {b: *a}", r"alias \*a stands for the node that it is in"),
        ("a: &a " + "[" * 100_000 + " *a", "nested more than 50 deep"),
        ("a: " + "[" * 100_000, "foreign"),
        ("a: " + "{a: " * 3000 + "1" + "}" * 3000, "foreign"),
        ("a: 1 #" + "x" * 2**20, "at most 1048576 are read"),
        ("a: !!python/object/apply:os.system ['touch escaped']", "not valid YAML"),
        ("a: !!python/name:os.system", "not valid YAML"),
        ("a: !!python/module:payload", "not valid YAML"),
        (b"a: \xff\xfe", "foreign"),
        (b"a: \0", "foreign"),
        ("a: " + "9" * 5000, "foreign"),
        ("defaults: 5", "foreign"),
        ("defaults: [{a: {b: c}}]", "foreign"),
        ("hydra: 5", "foreign|hydra"),
        ("defaults: [/../../../../etc/hostname]", "foreign|Could not"),
        (
            "\n".join(f"t{i}: {{l: '${{t{i + 1}}}', r: '${{t{i + 1}}}'}}" for i in range(40)) + "\nt40: {x: 1}",
            "unfolds",
        ),
        ("\n".join(f"t{i}: '${{t{i + 1}}}${{t{i + 1}}}'" for i in range(40)) + "\nt40: x", "repeats other texts"),
        (
            "\n".join(f"t{i}: '${{t{i + 1}}}'" for i in range(5000)) + "\nt5000: x",
            "nested too deep|no such key|foreign",
        ),
        ("a: '${a}'", "a"),
        ("5: x", "5: no such key"),
        ("? [a, b]\n: c", "foreign"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_malicious_file_is_refused_in_one_line(
    text: str | bytes, message: str, payload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "config").mkdir()
    monkeypatch.chdir(folder)
    refused(write(folder, text), message)
    assert not payload.exists()


def test_a_group_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "bad.yaml").write_text(laughs(30))
    refused(write(tmp_path, "defaults: [{group: bad}]"), r"bad\.yaml: refused: its aliases unfold")


def test_ordinary_aliases_are_accepted(tmp_path: Path) -> None:
    text = "model: &m {num_books: 2}\ntrainer: {max_steps: &s 3, log_every_n_steps: *s}\nname: '${model.num_books} & *'"
    cfg = compose(write(tmp_path, text), "foreign", [])
    assert OmegaConf.select(cfg, "trainer.log_every_n_steps") == 3
    paths = "\n".join(f"    - ${{name}}/${{part}}/{i}.json" for i in range(500))
    write(tmp_path, f"name: data\npart: train\nmodel:\n  train_ds:\n    manifest_filepath:\n{paths}\n")
    with pytest.raises(ConfigError, match="part: no such key"):  # the references were accepted
        load(tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "model.encoder._target_=os.system",
        "model.train_ds.batch_augmentor._target_=os.system",
        "model.spec_augment._target_=subprocess.Popen",
        "model.loss._target_=${oc.env:EVIL}",
        "model.loss={_target_: torch.nn.Linear, in_features: 1, out_features: 1}",
        "model.encoder._target_=nest_ssl.config.targets.instantiate",
        "model.encoder._target_=nest_ssl.model.conformer.encoder.torch",
        "model.encoder._target_=[os.system]",
        "+trainer.plugins={_target_: os.system}",
        "trainer.logger={_target_: os.system}",
        "+hydra/job_logging=custom",
        "+exp_manager.summary_writer_kwargs={_target_: os.system}",
    ],
)
def test_only_classes_in_the_table_are_built(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("EVIL", "os.system")
    monkeypatch.chdir(tmp_path)
    built: list[Any] = []
    for name in ("system", "popen"):
        monkeypatch.setattr(f"os.{name}", lambda *arguments: built.append(arguments))
    data = ["model.train_ds.manifest_filepath=nowhere.json", "model.validation_ds=null"]
    small = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.num_classes=32", "exp_manager=null"]
    assert main([*data, *small, override] if "exp_manager" not in override else [*data, override], CONFIG) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert not built


TEXT = (CONFIG / f"{MAIN}.yaml").read_text(encoding="utf-8")


@given(at=st.integers(0, len(TEXT) - 1), cut=st.integers(0, 20), new=st.text(max_size=8))
@settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_damaged_file_is_read_or_refused(at: int, cut: int, new: str, tmp_path: Path) -> None:
    changed = (TEXT[:at] + new + TEXT[at + cut :]).encode("utf-8", "surrogatepass")
    message = ""
    try:
        load(write(tmp_path, changed))
    except NestError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("12:00:00:00", "base 60"),
        ("017", "base 8"),
        ("9" * 4301, "an integer of 4301 digits"),
        ("1e999", "larger than any number"),
    ],
)
def test_numbers_with_a_misleading_form_are_refused(tmp_path: Path, written: str, message: str) -> None:
    refused(write(tmp_path, f"a: 1\nb: {{c: {written}}}\n"), f"foreign.yaml: refused: line 2: .*{message}")


def test_a_huge_integer_on_the_command_line_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "seed: 1\n"), f"seed={'9' * 4301}")
    assert "\n" not in str(caught.value)

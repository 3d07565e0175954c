from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nest_ssl.config.command_line import CommandLine, parse_command_line
from nest_ssl.config.compose import compose, load_config
from nest_ssl.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "config"
NEMO_FILE = Path(__file__).parents[1] / "integration" / "data"
MAIN = "nest_fast-conformer"


def load(*overrides: str, name: str = MAIN, folder: Path = CONFIG) -> OmegaConf:
    return load_config(CommandLine(folder, name, list(overrides)))


def flat(name: str, folder: Path = CONFIG) -> dict[str, object]:
    def leaves(node: dict, prefix: str = "") -> dict[str, object]:
        found = {}
        for key, value in node.items():
            found.update(leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
        return found

    return leaves(OmegaConf.to_container(compose(folder, name, [])))  # type: ignore[arg-type]


def difference(name: str) -> dict[str, object]:
    main = flat(MAIN)
    return {key: value for key, value in flat(name).items() if key not in main or main[key] != value}


def test_the_main_file_differs_from_nemos_only_where_it_must_to_run_anywhere() -> None:
    ours, nemos = flat(MAIN), flat("nemo_nest_fast-conformer", NEMO_FILE)
    assert ours.keys() == nemos.keys()
    assert {key: value for key, value in ours.items() if value != nemos[key]} == {
        "model.train_ds.manifest_filepath": "data/dummy_ssl/train_manifest.json",
        "model.validation_ds.manifest_filepath": "data/dummy_ssl/val_manifest.json",
        "model.train_ds.batch_size": 2,
        "model.validation_ds.batch_size": 2,
        "model.train_ds.num_workers": 0,
        "model.validation_ds.num_workers": 0,
        "trainer.strategy": "auto",
    }


def test_the_fast_file_changes_the_keys_that_its_guide_lists() -> None:
    assert difference("nest_fast-conformer_fast") == {
        "model.numerics": "fast",
        "model.train_ds.batch_size": 8,
        "model.validation_ds.batch_size": 8,
        "trainer.precision": "16-mixed",
        "trainer.log_every_n_steps": 50,
    }
    assert flat("nest_fast-conformer_fast")["model.train_ds.drop_last"] is True


def test_the_ddp_example_uses_ddp_and_synchronised_batch_norm() -> None:
    cfg = load(name="nest_fast-conformer_ddp_example")
    assert cfg.trainer.strategy == "ddp"
    assert cfg.trainer.sync_batchnorm is True
    assert cfg.model.train_ds.num_workers > 0


def test_the_file_for_small_data_is_small_and_short() -> None:
    cfg = load(name="nest_small_data")
    small = load("+size=small").model.encoder
    assert {key: cfg.model.encoder[key] for key in small if not key.startswith("dropout")} == {
        key: value for key, value in small.items() if not key.startswith("dropout")
    }
    assert cfg.model.numerics == "fast"
    assert cfg.model.optim.sched.warmup_steps * 10 < cfg.trainer.max_steps <= 10_000
    assert cfg.trainer.max_steps % cfg.trainer.val_check_interval == 0  # the last step is validated
    assert cfg.exp_manager.resume_if_exists is True
    train_ds, validation_ds = cfg.model.train_ds, cfg.model.validation_ds
    assert train_ds.batch_size is None
    assert train_ds.batch_duration >= train_ds.max_duration == validation_ds.max_duration
    assert train_ds.batch_augmentor == validation_ds.batch_augmentor


def test_a_size_replaces_the_size_in_the_file_for_small_data() -> None:
    small, medium = load(name="nest_small_data"), load("+size=medium", name="nest_small_data")
    assert medium.model.encoder.d_model == medium.model.optim.sched.d_model == 256
    assert medium.model.optim.weight_decay == 1e-3
    assert medium.model.masking == small.model.masking
    assert medium.trainer == small.trainer


def test_every_value_for_small_data_has_a_reason() -> None:
    lines = (CONFIG / "nest_small_data.yaml").read_text(encoding="utf-8").splitlines()
    values = [line for line in lines if re.match(r" +\w+: *[^ #]", line)]
    assert len(values) > 20
    assert [line for line in values if " # " not in line] == []


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIG.glob("*.yaml")))
def test_every_shipped_file_is_complete_and_has_known_keys_only(name: str) -> None:
    load(name=name)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("small", (176, 4, 16, 9, 0.0, True, True)),
        ("medium", (256, 4, 16, 9, 1e-3, True, True)),
        ("large", (512, 8, 17, 9, 1e-3, True, True)),
        ("xlarge", (1024, 8, 24, 9, 1e-3, False, False)),
        ("xxlarge", (1024, 8, 42, 5, 1e-3, False, False)),
    ],
)
def test_a_size_is_chosen_with_one_word(size: str, expected: tuple) -> None:
    cfg = load(f"+size={size}")
    encoder = cfg.model.encoder
    shape = (encoder.d_model, encoder.n_heads, encoder.n_layers, encoder.conv_kernel_size)
    assert (*shape, cfg.model.optim.weight_decay, encoder.xscaling, encoder.use_bias) == expected
    assert cfg.model.decoder.feat_in == cfg.model.optim.sched.d_model == encoder.d_model
    assert encoder.subsampling_conv_channels == 256


def test_an_override_takes_precedence_over_the_chosen_size() -> None:
    assert load("+size=small", "model.encoder.n_layers=2").model.encoder.n_layers == 2


@pytest.mark.parametrize(
    ("overrides", "name", "folder"),
    [
        ((), "SSL-NEST-FastConformer", "SSL-NEST-FastConformer"),
        (("+size=small",), "SSL-NEST-FastConformer-small", "SSL-NEST-FastConformer-small"),
        (("+size=small", "name=mine"), "mine", "mine"),
        (("name=mine", "+size=medium"), "mine", "mine"),
        (("+size=medium", "exp_manager.name=mine"), "SSL-NEST-FastConformer-medium", "mine"),
    ],
)
def test_sizes_have_separate_folders_unless_the_run_has_a_name(
    overrides: tuple[str, ...], name: str, folder: str
) -> None:
    cfg = load(*overrides)
    assert (cfg.name, cfg.exp_manager.name) == (name, folder)
    assert cfg.exp_manager.checkpoint_callback_params.filename.startswith(f"{name}--")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=42", "seed", 42),
        ("output_dir=./saved", "output_dir", "./saved"),
        ('save_steps="0"', "save_steps", "0"),
        ("trainer.limit_train_batches=1", "trainer.limit_train_batches", 1),
        ("+trainer.limit_train_batches=1", "trainer.limit_train_batches", 1),
        ("++trainer.max_steps=7", "trainer.max_steps", 7),
        ("+trainer.max_steps=7", "trainer.max_steps", 7),
        ("model.encoder.reduction=pooling", "model.encoder.reduction", "pooling"),
        ("model.train_ds.persistent_workers=true", "model.train_ds.persistent_workers", True),
        ("exp_manager.max_time_per_run=00:01:00:00", "exp_manager.max_time_per_run", "00:01:00:00"),
        ("init_from_nemo_model=a.nemo", "init_from_nemo_model", "a.nemo"),
        ("trainer.strategy=null", "trainer.strategy", None),
        ("model.encoder.att_context_size=[70,13]", "model.encoder.att_context_size", [70, 13]),
        ("hydra.run.dir=.", "trainer.max_steps", 500000),
    ],
)
def test_a_key_that_the_file_lacks_needs_no_plus(override: str, key: str, value: object) -> None:
    assert OmegaConf.select(load(override), key) == value


@pytest.mark.parametrize(
    "path",
    [
        "runs/NEST--val_loss=5.123-step=10-last.ckpt",
        "C:\\Users\\me\\train.json",
        "\u6570\u636e/train.json",
        "my data/train (1).json",
        "D:\\\u6570\u636e\\",
        "a.json,b.json",
    ],
)
def test_any_path_can_be_typed_without_quotes(path: str) -> None:
    assert load(f"model.train_ds.manifest_filepath={path}").model.train_ds.manifest_filepath == path


@pytest.mark.parametrize(
    "paths",
    [
        ["C:\\My Files (1)\\a.json", "D:\\\u6570\u636e\\"],
        ["a & b/x=1.json", "b.json"],
        ["\u6570\u636e/a.json"],
    ],
)
def test_several_paths_can_be_typed_as_a_list(paths: list[str]) -> None:
    typed = f"model.train_ds.manifest_filepath=[{', '.join(paths)}]"
    assert load(typed).model.train_ds.manifest_filepath == paths


def test_a_key_can_be_removed() -> None:
    assert "benchmark" not in load("~trainer.benchmark").trainer


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_step=3", r"trainer.max_step: no such key \(did you mean 'trainer.max_steps'\?\)"),
        ("model.train_ds.batchsize=3", r"model.train_ds.batchsize: .*'model.train_ds.batch_size'"),
        ("model.encoder.reductoin=pooling", r"model.encoder.reductoin: .*'model.encoder.reduction'"),
        ("model.train_ds.batch_augmentor.probb=1", r"'model.train_ds.batch_augmentor.prob'"),
        ("exp_manager.checkpoint_callback_params.save_topk=1", r"'exp_manager.checkpoint_callback_params.save_top_k'"),
        ("batch_size=3", r"batch_size: no such key \(did you mean 'model.train_ds.batch_size'\?\)"),
        ("max_steps=4", r"^max_steps: no such key \(did you mean 'trainer.max_steps'\?\)"),
        ("max_step=4", r"'trainer.max_steps'"),
        ("model.max_epochs=4", r"'trainer.max_epochs'"),
        ("trainer.batch_size=4", r"'model.train_ds.batch_size'"),
        ("model.validation_ds.n_layers=4", r"'model.encoder.n_layers'"),
        ("model.combine_time_steps=4", r"'model.quantizer.combine_time_steps'"),
        ("train_ds.manifest_filepath=a.json", r"train_ds: no such key \(did you mean 'model.train_ds'\?\)"),
        ("learning_rate=1", r"'model.optim.lr'"),
        ("model.learning_rate=1", r"'model.optim.lr'"),
        ("trainer.lr=1", r"'model.optim.lr'"),
        ("epochs=1", r"'trainer.max_epochs'"),
        ("trainer.epochs=1", r"'trainer.max_epochs'"),
        ("batch=1", r"'model.train_ds.batch_size'"),
        ("model.validation_ds.batch=1", r"'model.validation_ds.batch_size'"),
        ("gpus=2", r"'trainer.devices'"),
        ("workers=2", r"'model.train_ds.num_workers'"),
        ("warmup=100", r"'model.optim.sched.warmup_steps'"),
        ("xyzzy=1", r"^xyzzy: no such key$"),
        ("modle.num_books=1", r"modle: no such key \(did you mean 'model'\?\)"),
        ("trainer=5", r"trainer: is 5; expected keys below it"),
        ("trainer.callbacks=[x]", r"trainer.callbacks: cannot be set in a configuration"),
        ("model.encoder._target_=os.system", r"model.encoder._target_: 'os.system' is not a known class"),
        ("trainer.max_steps=abc", r"trainer.max_steps: is 'abc'; expected a whole number"),
        ("trainer.max_steps", r"'trainer.max_steps': expected key=value"),
        ("trainer.devices=[0,1", r"'trainer.devices=\[0,1': Hydra cannot read this value"),
        ("model.train_ds.manifest_filepath=[a&b,,c]", r"\[a&b,,c\]': Hydra cannot read this value"),
        ("model.train_ds.manifest_filepath=[[a&b,1],c]", r"\[\[a&b,1\],c\]': Hydra cannot read this value"),
        ("~trainer.nothing", r"Could not delete from config. 'trainer.nothing' does not exist"),
        ("+size=huge", r"Could not find 'size/huge' Available options in 'size': large medium small"),
        ("model.train_ds.manifest_filepath=???", r"^model.train_ds.manifest_filepath: has no value; give one"),
        ("name=${nothing.here}", r"name: Interpolation key 'nothing.here' not found"),
    ],
)
def test_a_mistake_gives_one_line_that_names_the_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(override)
    assert "\n" not in str(caught.value)


def test_nemos_file_needs_a_manifest() -> None:
    key = "model.train_ds.manifest_filepath"
    with pytest.raises(ConfigError, match=f"{key}: has no value; give one on the command line: {key}=<value>"):
        load(name="nemo_nest_fast-conformer", folder=NEMO_FILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", r"broken.yaml:3: not valid YAML"),
        ("defaults:\n- nowhere\n", r"Could not load 'nowhere'"),
        ("a: ${b\n", r"broken: "),
        ("- a\n- b\n", r"broken: "),
    ],
)
def test_a_broken_file_gives_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(name="broken", folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no nest_fast-confomer.yaml in .*\(did you mean 'nest_fast-conformer'\?\)"):
        load(name="nest_fast-confomer")


@pytest.mark.parametrize(
    "argv",
    [
        ["--config-path", "config", "--config-name", "nest_fast-conformer_fast", "seed=1"],
        ["--config-path=config", "seed=1", "--config-name=nest_fast-conformer_fast.yaml"],
        ["seed=1", "-cn", "nest_fast-conformer_fast"],
    ],
)
def test_hydras_options_work_in_any_order_and_spelling(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIG.parent)
    command = parse_command_line(argv, CONFIG)
    assert (command.config_dir, command.config_name) == (CONFIG.resolve(), "nest_fast-conformer_fast")
    assert command.overrides == ["seed=1"]


def test_a_relative_folder_is_searched_here_and_then_next_to_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_command_line(["--config-path=config"], CONFIG).config_dir == CONFIG.resolve()
    (tmp_path / "config").mkdir()
    assert parse_command_line(["--config-path=config"], CONFIG).config_dir == tmp_path / "config"
    with pytest.raises(ConfigError, match="--config-path: 'elsewhere' is not a folder"):
        parse_command_line(["--config-path=elsewhere"], CONFIG)


def test_composing_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load("seed=1")
    assert list(tmp_path.iterdir()) == []

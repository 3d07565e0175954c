"""YAML files of other people: numbers with a misleading form, aliases, depth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nest_ssl.checkpoint.config import parse_config, why_hostile
from nest_ssl.errors import CheckpointError

ODD = {
    "1:30": "1:30 is a number of base 60 in YAML",
    "12:00:00:00": "12:00:00:00 is a number of base 60",
    "-1:30.5": "-1:30.5 is a number of base 60",
    "0:30.5": "0:30.5 is a number of base 60",
    "017": "017 is a number of base 8",
    "0_17": "0_17 is a number of base 8",
    "9" * 4301: "9999.* is an integer of 4301 digits",
    "1" + "0" * 19: "1000.* is an integer of 20 digits",
    "-0x" + "f" * 10_000: "-0xf.* is an integer of 10000 digits",
    "0b" + "1" * 65: "0b1.* is an integer of 65 digits",
    "1e999": "1e999 is larger than any number",
    "-1.5E+400": r"-1\.5E\+400 is larger than any number",
    "9" * 400 + ".5": "999.* is larger than any number",
}
PLAIN = {
    "90": 90,
    "1_000": 1000,
    "0x1F": 31,
    "0b11": 3,
    "0": 0,
    "0.017": 0.017,
    "1e-999": 0.0,
    "1e300": 1e300,
    ".inf": math.inf,
    "-.inf": -math.inf,
    "9223372036854775807": 2**63 - 1,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "2020-01-01": "2020-01-01",
    "2020-01-01 10:00:00": "2020-01-01 10:00:00",
    "'1:30'": "1:30",
    '"017"': "017",
    "00:04:00:00": "00:04:00:00",
    "a:30": "a:30",
    "0.1.2": "0.1.2",
}


@pytest.mark.parametrize("written", ODD)
@pytest.mark.parametrize("form", ["a: {}", "- 1\n- {}", "{}: a", "a: [1, {}]", "a: !!int {}", "a: {} # 1:30"])
def test_a_number_with_a_misleading_form_is_named(written: str, form: str) -> None:
    with pytest.raises(AssertionError, match=ODD[written]):
        assert why_hostile(form.format(written), aliases=True) is None, why_hostile(form.format(written), aliases=True)


@pytest.mark.parametrize("written", PLAIN)
def test_a_value_with_a_clear_form_is_read(written: str, tmp_path: Path) -> None:
    assert why_hostile(f"a: {written}", aliases=True) is None
    assert parse_config(f"a: {written}", tmp_path / "x.nemo").a == PLAIN[written]


def test_a_configuration_with_such_a_number_is_refused_in_one_line(tmp_path: Path) -> None:
    for written, message in ODD.items():
        with pytest.raises(CheckpointError, match=f"x.nemo: refused: its configuration: line 2: {message}") as caught:
            parse_config(f"b: 1\na: {written}", tmp_path / "x.nemo")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


@given(st.from_regex(r"[-+]?[0-9_:.eExb]{1,24}", fullmatch=True))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_accepted_numbers_have_the_value_that_python_reads(written: str) -> None:
    """The oracle is Python's value of the literal."""
    try:
        if why_hostile(f"a: {written}", aliases=True) is not None:
            return
        value = OmegaConf.create({"x": OmegaConf.create(f"a: {written}")}).x.a
    except yaml.YAMLError:
        return
    if isinstance(value, int | float) and not isinstance(value, bool):
        digits = written.replace("_", "")
        assert value == (int(digits, 0) if digits.lstrip("+-")[:2] in ("0x", "0b") else float(digits))


def test_archives_may_have_no_aliases_and_other_files_only_a_few() -> None:
    few = "a: &a [1, 2]\nb: *a"
    assert why_hostile(few, aliases=False) == "it uses YAML aliases"
    assert why_hostile(few, aliases=True) is None


@pytest.mark.parametrize("aliases", [False, True])
def test_depth_is_limited(aliases: bool) -> None:
    suspicious = ", 1:3:x]"  # not a number, but the rest must be parsed to know that
    assert why_hostile("[" * 50 + "1" + suspicious + "]" * 49, aliases=aliases) is None
    reason = why_hostile("[" * 51 + "1" + suspicious + "]" * 50, aliases=aliases)
    assert reason == "it is nested more than 50 deep"

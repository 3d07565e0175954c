from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.data.noise_parts import RunningSums


def sign(number: float) -> int:
    return (number > 0) - (number < 0)


def sign_of(samples: np.ndarray, start: int = 0, stop: int | None = None) -> int:
    return RunningSums(samples).sign(lambda first, last: samples[first:last], start, stop)


@given(
    length=st.integers(0, 3000),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    mean=st.sampled_from([0.0, 1e-7, -1e-4, 0.1]),
    closed=st.booleans(),
)
def test_the_sign_equals_that_of_pythons_sum(length: int, seed: int, scale: float, mean: float, closed: bool) -> None:
    samples = (scale * (mean + np.random.default_rng(seed).standard_normal(length))).astype(np.float32)
    if closed and length:  # the true sum is almost zero, so rounding decides
        samples[-1] = -math.fsum(samples[:-1].tolist())
    assert sign_of(samples) == sign(float(sum(samples)))


@given(start=st.integers(0, 4000), length=st.integers(0, 4000), seed=st.integers(0, 100))
def test_integers_have_the_sign_of_the_floats_that_they_represent(start: int, length: int, seed: int) -> None:
    integers = np.random.default_rng(seed).integers(-(2**15), 2**15, 4000, dtype=np.int16)
    floats = integers * np.float32(2.0**-15)
    stop = start + length
    expected = sign(float(sum(floats[start:stop])))
    assert sign_of(integers, start, stop) == expected
    assert sign_of(floats, start, stop) == expected


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_silence_has_no_sign(dtype: type) -> None:
    assert sign_of(np.zeros(1000, dtype=dtype)) == 0


def test_a_sum_that_only_rounding_makes_positive_is_positive() -> None:
    samples = np.zeros(1024, dtype=np.float32)
    samples[[0, 1]] = 2.0**24, 1.0  # 2^24 + 1 is not a float32: the 1 is lost
    samples[[2, 3]] = -(2.0**24), 2.0**-3
    samples[4] = -1.0
    assert math.fsum(samples.tolist()) > 0 > sum(samples)
    assert sign_of(samples) == -1

"""Steps of a small model in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.apps.doctor.steps import Steps, Trial
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_a_step_is_timed_in_every_precision_and_numerics(
    command: Callable[..., CommandLine], numerics: str, precision: str
) -> None:
    cfg = load_config(command(f"model.numerics={numerics}"))
    steps = Steps(OmegaConf.to_container(cfg.model), "cpu")  # type: ignore[arg-type]
    before = torch.cat([parameter.detach().flatten() for parameter in steps.model.parameters()])
    outcome = steps.measure(Trial(2, 1.5, precision))
    assert outcome.fits
    assert outcome.speed > 0
    assert outcome.peak > sum(parameter.nbytes for parameter in steps.model.parameters() if parameter.requires_grad)
    assert steps.optimizer.state  # moments are there, as in a run
    assert torch.equal(before, torch.cat([parameter.detach().flatten() for parameter in steps.model.parameters()]))

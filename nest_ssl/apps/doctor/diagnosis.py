"""`nest-ssl doctor`: check the machine and a configuration, run the trial, and collect the results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.disk import check_data_disk, check_run_folder
from nest_ssl.apps.doctor.machine import Facts, check_codecs, check_machine
from nest_ssl.apps.doctor.plan import RunPlan, check_plan, make_plan
from nest_ssl.apps.doctor.trial import TrialReport, run_trial
from nest_ssl.apps.quiet import quiet_libraries
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.shell import as_typed

SCHEMA = 2


@dataclass(frozen=True)
class DiagnosisRequest:
    """The options of `nest-ssl doctor`."""

    command: CommandLine
    own_folder: Path | None = None  # folder of configurations, if not the project's
    trial: bool = True
    minutes: float = 2.0
    lengths: tuple[float, ...] = ()  # seconds; by default the lengths of the data


@dataclass(frozen=True)
class Diagnosis:
    """The results; `no_trial` is the reason why there was no trial."""

    request: DiagnosisRequest
    facts: Facts
    machine: list[CheckResult]
    configuration: list[CheckResult]
    trial: TrialReport | None
    no_trial: str = ""

    @property
    def findings(self) -> list[CheckResult]:
        return [*self.machine, *self.configuration, *(self.trial.findings if self.trial else [])]

    @property
    def would_stop(self) -> bool:
        return any(finding.state == "problem" for finding in self.findings)

    def train_command(self) -> str:
        """Return the command that trains this configuration with the recommended values."""
        chosen = self.trial.overrides if self.trial else []
        keys = {override.partition("=")[0] for override in chosen}
        command = self.request.command
        folder = [] if self.request.own_folder is None else ["--config-path", str(self.request.own_folder)]
        own = [word for word in command.overrides if word.lstrip("+").partition("=")[0] not in keys]
        return as_typed(["nest-ssl train", *folder, "--config-name", command.config_name, *own, *chosen])

    def as_dict(self) -> dict[str, Any]:
        """Return the results for `--json`; sizes in bytes, times in seconds."""
        return {
            "schema": SCHEMA,
            "config_name": self.request.command.config_name,
            "overrides": list(self.request.command.overrides),
            "would_stop": self.would_stop,
            "facts": asdict(self.facts),
            "machine": [asdict(finding) for finding in self.machine],
            "configuration": [asdict(finding) for finding in self.configuration],
            "trial": self.trial and self.trial.as_dict(),
            "no_trial": self.no_trial,
            "train": self.train_command(),
        }


def diagnose(request: DiagnosisRequest, progress: Callable[[float, str], None]) -> Diagnosis:
    """Run all checks and the trial; raise an error only if the configuration cannot be composed.

    `progress` gets the share of the time that has passed, and what is being measured.
    """
    cfg = load_config(request.command)
    progress(0.0, "checking the machine")
    with quiet_libraries(logging.CRITICAL):
        facts = Facts.here()
        machine = [*check_machine(facts), check_codecs()]
        plan = make_plan(cfg, facts)
        configuration = [*check_plan(plan, facts), *_disks(plan)]
        reason = _why_no_trial(request, plan)
        if reason:
            return Diagnosis(request, facts, machine, configuration, None, reason)
        report = run_trial(plan, facts, 60 * request.minutes, request.lengths, progress)
        return Diagnosis(request, facts, machine, configuration, report)


def _disks(plan: RunPlan) -> list[CheckResult]:
    findings = list(check_run_folder(plan.folder, plan.checkpoint_bytes))
    files = plan.files()
    return [*findings, check_data_disk(files)] if files else findings


def _why_no_trial(request: DiagnosisRequest, plan: RunPlan) -> str:
    if not request.trial:
        return "switched off (--no-trial)"
    if not plan.model_is_usable:
        return "the model cannot be built"
    if not plan.data_is_usable and not request.lengths:
        return "the data cannot be read, so no lengths are known; give lengths to try (--buckets 5,10,20)"
    return ""

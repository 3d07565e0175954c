"""Optimizers and learning-rate schedules, chosen by the names that NeMo's configurations use."""

from nest_ssl.training.optim.optimizers import build_optimizer, clip_or_drop, parameter_groups, with_fused_kernel
from nest_ssl.training.optim.schedulers import build_scheduler
from nest_ssl.training.optim.schedules import NoamAnnealing

__all__ = [
    "NoamAnnealing",
    "build_optimizer",
    "build_scheduler",
    "clip_or_drop",
    "parameter_groups",
    "with_fused_kernel",
]

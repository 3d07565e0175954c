"""The texts of a run's report in English and Chinese (texts.yaml), and numbers for people."""

from __future__ import annotations

import math
import time
from pathlib import Path

from markupsafe import escape

from nest_ssl.apps.pages.text import Phrases, Words

REASONS = {  # of nest_ssl/config/machine.py; other reasons are shown as the run wrote them
    "there is no GPU that PyTorch can use": "没有 PyTorch 可用的 GPU",
    "the quantizer's codebooks are float64, which Apple's GPU does not have": "码本是 float64，苹果的 GPU 不支持",
    "without a GPU, one process trains on all cores": "没有 GPU 时，一个进程用所有核心训练",
    "one process has nobody to share with": "只有一个进程，无需分布式",
    "Windows has no NCCL": "Windows 没有 NCCL",
    "one process has all statistics": "只有一个进程，统计量本来就是全部的",
    "PyTorch has it for GPUs only": "PyTorch 只在 GPU 上支持",
    "this hardware does not multiply bfloat16": "该硬件不支持 bfloat16 乘法",
    "processors are slow with float16": "处理器计算 float16 很慢",
    "it speeds up copies to a GPU only": "只能加快向 GPU 的拷贝",
}

words = Phrases.read(Path(__file__).with_name("texts.yaml"))


def reason_words(reason: str) -> Words:
    return Words(escape(reason), escape(REASONS.get(reason, reason)))


def number(value: float) -> str:
    """4.123, 12,340, 1.2e-05."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float) -> str:
    return f"{value * 100:.3g}%"


def span(seconds: float) -> Words:
    """3 d 4 h, 5 h 12 min, 8 min, 40 s: the two largest units, with spaces that break no line."""
    total = round(seconds)
    days, hours, minutes = total // 86400, total % 86400 // 3600, total % 3600 // 60
    if days:
        parts = [(days, "d", "天"), (hours, "h", "小时")]
    elif hours:
        parts = [(hours, "h", "小时"), (minutes, "min", "分")]
    elif minutes:
        parts = [(minutes, "min", "分")]
    else:
        parts = [(total, "s", "秒")]
    english = "\xa0".join(f"{count}\xa0{unit}" for count, unit, _ in parts)
    chinese = "".join(f"{count}\xa0{unit}" for count, _, unit in parts)
    return Words(escape(english), escape(chinese))


def moment(seconds: float) -> str:
    """Return a date and time in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))

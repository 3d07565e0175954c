"""The texts of a run's report in English and Chinese, and numbers for people."""

from __future__ import annotations

import math
import time

from markupsafe import escape

from nest_ssl.apps.pages.text import Phrases, Words

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Training run", "训练运行"),
    "title_several": ("{count} training runs side by side", "{count} 次训练运行对比"),
    "made_at": ("as of {time}", "截至 {time}"),
    # verdict
    "good": ("Healthy", "健康"),
    "early": ("Too early to say", "为时尚早"),
    "unknown": ("Nothing to judge by yet", "尚无可判断的依据"),
    "few_targets": ("Targets use few codes", "目标只用到少数码"),
    "idle_codes": ("Most codes are idle", "大部分码闲置"),
    "collapsing": ("Collapsing", "正在坍缩"),
    "narrowing": ("Predictions narrow", "预测趋于单一"),
    "not_learning": ("Not learning", "没有在学习"),
    "stuck": ("Learns frequencies only", "只学到了频率"),
    "not_finite": ("Loss is not finite", "损失不是有限数"),
    "chance": ("No better than chance", "不比随机猜测好"),
    "val_rises": ("Validation loss rises", "验证损失上升"),
    "state_good": ("healthy", "健康"),
    "state_early": ("too early", "为时尚早"),
    "state_caution": ("watch this", "需留意"),
    "state_bad": ("problem", "有问题"),
    "state_unknown": ("not known", "未知"),
    # sentences of findings
    "why_few_targets": (
        "Codebook {book}: the targets use about {perplexity} of {codes} codes (perplexity). There is little to learn "
        "from them; the usual cause is features that are not normalised: "
        "check <code>model.preprocessor.normalize</code>.",
        "码本 {book}：{codes} 个码中目标约只用到 {perplexity} 个（困惑度），几乎没有可学的内容；"
        "常见原因是特征未归一化：请检查 <code>model.preprocessor.normalize</code>。",
    ),
    "why_idle_codes": (
        "Codebook {book}: only {share} of the {codes} codes have occurred since the start. The usual "
        "causes are data without variety and features that are nearly constant.",
        "码本 {book}：开始至今，{codes} 个码中只出现过 {share}。数据过于单一或特征近乎不变时会如此。",
    ),
    "why_varied_targets": (
        "Codebook {book}: the targets use about {perplexity} of {codes} codes (perplexity).",
        "码本 {book}：{codes} 个码中目标约用到 {perplexity} 个（困惑度）。",
    ),
    "why_collapsing": (
        "Codebook {book}: codes in use (perplexity): {predicted} by the predictions, which once used {best_codes}; "
        "{targets} by the targets. The model predicts the same few codes for any input: lower the learning "
        "rate, or go back to an earlier checkpoint.",
        "码本 {book}：使用中的码（困惑度）：预测 {predicted} 个，曾达 {best_codes} 个；目标 {targets} 个。"
        "无论听到什么，模型都给出同样的几个码：请降低学习率，或退回之前的检查点。",
    ),
    "why_narrowing": (
        "Codebook {book}: codes in use (perplexity): {predicted} by the predictions, less than half of the "
        "{best_codes} of before; {targets} by the targets. If this goes on, the model collapses.",
        "码本 {book}：使用中的码（困惑度）：预测 {predicted} 个，不到此前 {best_codes} 个的一半；目标 {targets} 个。"
        "若继续下去，模型就会坍缩。",
    ),
    "why_few_predictions": (
        "Codebook {book}: codes in use (perplexity): {predicted} by the predictions, {targets} by the targets; this "
        "is usual while the model knows little more than which codes are frequent.",
        "码本 {book}：使用中的码（困惑度）：预测 {predicted} 个，目标 {targets} 个；在模型还只知道哪些码常见时属正常。",
    ),
    "why_varied_predictions": (
        "Codebook {book}: codes in use (perplexity): {predicted} by the predictions, {targets} by the targets.",
        "码本 {book}：使用中的码（困惑度）：预测 {predicted} 个，目标 {targets} 个。",
    ),
    "why_warming_up": (
        "Loss {loss}; guessing costs {guessing}. The learning rate warms up until step {warmup}: this says little yet.",
        "损失 {loss}；随机猜测为 {guessing}。学习率预热到第 {warmup} 步，目前还说明不了什么。",
    ),
    "why_not_learning": (
        "Loss {loss} after {step} steps is that of guessing, {guessing} = log V: nothing has been learnt. Check the "
        "learning rate, the gradients, and whether the audio matches the manifest.",
        "{step} 步之后损失为 {loss}，与随机猜测 {guessing} = log V 相同：什么也没学到。"
        "请检查学习率、梯度，以及音频是否与清单相符。",
    ),
    "why_chance": (
        "Accuracy {accuracy} is that of guessing ({chance}), though the loss of {loss} is below {guessing}.",
        "准确率 {accuracy} 与随机猜测（{chance}）相当，尽管损失 {loss} 低于 {guessing}。",
    ),
    "why_only_frequencies": (
        "Loss {loss} is below guessing ({guessing}), but not below {frequencies}, the loss of knowing the codes' "
        "frequencies only: the model does not use the context yet.",
        "损失 {loss} 低于随机猜测（{guessing}），但不低于 {frequencies}，即只知道各码频率就能达到的损失："
        "模型还没有利用上下文。",
    ),
    "why_stuck": (
        "Loss {loss} after {step} steps is not below {frequencies}, the loss of knowing the codes' frequencies only: "
        "the model does not learn from the context. Check the learning rate and how much is masked.",
        "{step} 步之后损失 {loss} 仍不低于 {frequencies}，即只知道各码频率就能达到的损失："
        "模型没有从上下文中学习。请检查学习率与掩码比例。",
    ),
    "why_not_finite": (
        "{share} of the newest training losses are not finite: lower <code>model.optim.lr</code>, or use "
        "<code>trainer.precision=32</code>.",
        "最近的训练损失中有 {share} 不是有限数：请降低 <code>model.optim.lr</code>，"
        "或使用 <code>trainer.precision=32</code>。",
    ),
    "why_learning": (
        "Loss {loss}, below that of guessing ({guessing} = log V).",
        "损失 {loss}，低于随机猜测（{guessing} = log V）。",
    ),
    "why_val_rises": (
        "Validation loss is {now}, its best was {best}: the model overfits, or training has become unstable.",
        "验证损失为 {now}，最好时为 {best}：模型在死记训练数据，或训练变得不稳定。",
    ),
    "other_books": (" {count:other codebook} likewise.", "另外 {count} 个码本也是如此。"),
    "why_no_codebooks": (
        "This run logs nothing about its codebooks, so the verdict is based on the loss alone.",
        "这次运行没有记录码本的情况，只能依据损失判断。",
    ),
    "why_no_loss": ("No training loss has been logged yet.", "还没有记录训练损失。"),
    # status
    "running": ("Running", "运行中"),
    "finished": ("Finished", "已完成"),
    "stopped": ("Stopped", "已停止"),
    "silent": ("Started, nothing logged yet", "已启动，尚无记录"),
    "step_of": ("step {step} of {total}", "第 {step} / {total} 步"),
    "step_of_about": ("step {step} of about {total}", "第 {step} / 约 {total} 步"),
    "step_only": ("step {step}", "第 {step} 步"),
    "time_left": ("about {time} left", "约剩 {time}"),
    "judged_age": (
        "Judged by age: the newest value is {age} old; after {patience} without a value the run counts as stopped.",
        "按时间判断：最新的数值是 {age} 前的；静默超过 {patience} 视为已停止。",
    ),
    "judged_empty": ("No event file has a value yet.", "事件文件中还没有内容。"),
    # figures
    "figures": ("Key figures", "关键数字"),
    "figure": ("Figure", "项目"),
    "verdict": ("Verdict", "结论"),
    "status": ("Status", "状态"),
    "step": ("Steps", "步数"),
    "epoch": ("Epoch", "轮次"),
    "train_loss": ("Training loss, running mean", "训练损失（滑动平均）"),
    "val_loss": ("Validation loss", "验证损失"),
    "best_val_loss": ("Best validation loss", "最佳验证损失"),
    "train_accuracy": ("Training accuracy", "训练准确率"),
    "val_accuracy": ("Validation accuracy", "验证准确率"),
    "audio_seconds_per_second": ("Audio seconds per second", "每秒处理的音频秒数"),
    "steps_per_second": ("Steps per second", "每秒步数"),
    "data_wait_share": ("Waiting for data", "等待数据"),
    "padding_efficiency": ("Padding efficiency", "填充效率"),
    "starts": ("Starts", "启动次数"),
    "skipped_audio": ("Skipped audio", "跳过的音频"),
    "nonfinite_steps": ("Skipped steps", "跳过的步"),
    "losses_training": ("Training loss and accuracy", "训练损失和准确率"),
    "losses_validation": ("Validation loss and accuracy", "验证损失和准确率"),
    "losses_both": ("Losses and accuracies", "损失和准确率"),
    "not_compared_keys": (
        "{what} are not compared: the runs solve different tasks or use different data. They differ in {keys}.",
        "{what}不作比较：各次运行的任务或数据不同。不同之处：{keys}。",
    ),
    "not_compared_unknown": (
        "{what} are not compared: the configuration of {names} is not known, so their tasks may differ.",
        "{what}不作比较：{names} 的配置未知，任务可能不同。",
    ),
    # curves
    "curves": ("Curves", "曲线"),
    "losses": ("Loss", "损失"),
    "accuracies": ("Accuracy on masked frames", "掩码帧上的准确率"),
    "learning_rate": ("Learning rate", "学习率"),
    "gradient_norm": ("Gradient norm, before clipping", "梯度范数（裁剪前）"),
    "weight_norm": ("Norm of the weights", "权重范数"),
    "masked_share": ("Share of frames that the loss uses", "参与损失的帧占比"),
    "training": ("training", "训练"),
    "validation": ("validation", "验证"),
    "level_guessing": ("guessing: log V = {value}", "随机猜测：log V = {value}"),
    "level_frequencies": ("frequencies alone: log P = {value}", "只知频率：log P = {value}"),
    "level_chance": ("twice guessing: 2/V = {value}", "随机猜测的两倍：2/V = {value}"),
    "level_targets": ("least for targets: √V = {value}", "目标的下限：√V = {value}"),
    "of_run": ("{run} {name}", "{run} {name}"),
    "axis_steps": ("steps", "步"),
    "axis_seconds": ("seconds", "秒"),
    "reading_hint": (
        "Point at a chart, or choose one and use the arrow keys, to read its values.",
        "将指针移到图上，或选中图后用方向键，即可查看数值。",
    ),
    "mean_hint": (
        "Pale: as logged. Strong: running mean. Dashed vertical lines: the run was restarted.",
        "浅色：原始记录。深色：滑动平均。竖直虚线：运行被重新启动。",
    ),
    "not_finite_count": ("{count:value} not finite (✕)", "{count} 个值不是有限数（✕）"),
    "not_logged": ("Not logged by this run: {names}.", "这次运行没有记录：{names}。"),
    "nothing_logged": ("Nothing has been logged yet.", "还没有任何记录。"),
    # code books
    "codebooks": ("Codebooks", "码本"),
    "coverage": ("Share of the codes in use", "使用中的码占比"),
    "of_book": ("Codebook {number}. {name}", "码本 {number}。{name}"),
    "targets": ("targets", "目标"),
    "targets_since_start": ("targets since the start", "目标（自开始累计）"),
    "predictions": ("predictions", "预测"),
    "perplexity": ("Perplexity: codes in use, weighted by frequency", "困惑度：按频率加权的使用码数"),
    # throughput
    "throughput": ("Throughput", "吞吐量"),
    "efficiency_hint": (
        "Padding efficiency: the share of audio in padded batches; the rest is padding, which also costs computation.",
        "填充效率：填充后的批次中音频所占的比例；其余是填充，同样耗费计算。",
    ),
    # samples
    "samples": ("Samples to listen to", "可试听的样本"),
    "samples_at": ("From the validation at step {step}.", "取自第 {step} 步的验证。"),
    "sample": ("Utterance {number}, {seconds} s", "第 {number} 条，{seconds} 秒"),
    "clean": ("Clean", "干净"),
    "noisy": ("Noisy: what the model hears", "加噪：模型听到的"),
    "picture_caption": (
        "Log-mel of the noisy signal, grey where it was masked. Below: target and predicted tokens, one colour per "
        "code; green and red show where they agree and differ: {right} of {scored} frames of the loss are correct.",
        "加噪信号的对数梅尔谱，灰色处被掩盖。下方：目标与预测的码，同色同码；"
        "绿色与红色表示二者相同与不同：参与损失的 {scored} 帧中 {right} 帧正确。",
    ),
    "row_log-mel": ("log-mel", "对数梅尔谱"),
    "row_masked": ("masked", "掩盖"),
    "row_target": ("target {book}", "目标 {book}"),
    "row_predicted": ("predicted {book}", "预测 {book}"),
    "row_right": ("right", "正确"),
    "no_samples": (
        "This run has no samples: it was made by an older version, or has not validated yet.",
        "这次运行没有保存样本：由旧版本产生，或尚未做过验证。",
    ),
    "bad_samples": ("The samples cannot be read. {problem}", "样本无法读取。{problem}"),
    # skipped data
    "skipped": ("Skipped data", "跳过的数据"),
    "skipped_unknown": (
        "Not known: this run does not log what it skips.",
        "未知：这次运行没有记录跳过的内容。",
    ),
    "nothing_skipped": (
        "Nothing: no audio was skipped, every batch had masked frames, every step was finite.",
        "无：没有跳过音频，每个批次都有掩码帧，每一步都是有限数。",
    ),
    "skipped_sum": (
        "Utterances skipped: {audio}. Batches without masked frames: {unmasked}. "
        "Steps skipped because loss or gradient was not finite: {nonfinite}.",
        "跳过的音频：{audio} 条。没有掩码帧的批次：{unmasked} 个。因损失或梯度非有限数而舍弃的步：{nonfinite} 步。",
    ),
    "problems_listed": (
        "Audio with problems, from <code>problem_audio*.jsonl</code>:",
        "有问题的音频，取自 <code>problem_audio*.jsonl</code>：",
    ),
    "problem_kind": ("Kind", "种类"),
    "problem_files": ("Files", "文件数"),
    "problem_example": ("For example", "例如"),
    "kept_batches": (
        "Batches that were not finite are kept in {folder}: {names}.",
        "非有限的批次保存在 {folder}：{names}。",
    ),
    # restarts
    "restarts": ("Starts", "启动记录"),
    "start_number": ("Start", "启动"),
    "start_time": ("Time", "时间"),
    "start_steps": ("Steps", "步"),
    "start_changes": ("Configuration changed", "配置变化"),
    "start_nothing": ("logged nothing", "无记录"),
    # configuration
    "configuration": ("Configuration", "配置"),
    "adjusted_count": (
        "Adjusted to the machine that trained: {count}.",
        "按训练所用机器自动调整：{count} 项。",
    ),
    "adjusted_from": ("adjusted from {asked}: {reason}", "由 {asked} 自动调整：{reason}"),
    "no_config": ("There is no config.yaml in this folder.", "文件夹中没有 config.yaml。"),
    "key": ("Key", "键"),
    "absent": ("not set", "未设置"),
    "whole_config": ("All of it (YAML)", "完整配置（YAML）"),
    "config_between": ("Configuration keys that differ between the runs", "各次运行之间不同的配置键"),
    "config_all_same": ("All runs have the same configuration.", "各次运行配置相同。"),
    # environment
    "environment": ("Environment", "环境"),
    "no_environment": ("There is no environment.json in this folder.", "文件夹中没有 environment.json。"),
    "setting": ("Setting", "项目"),
    "value": ("Value", "值"),
    "folder": ("Folder", "文件夹"),
    "each_run": ("Each run", "各次运行"),
    "run_finding": ("<strong>{run}</strong>: {finding}", "<strong>{run}</strong>：{finding}"),
}

REASONS = {  # of nest_ssl/config/machine.py; other reasons are shown as the run wrote them
    "there is no GPU that PyTorch can use": "没有 PyTorch 可用的 GPU",
    "the quantizer's codebooks are float64, which Apple's GPU does not have": "码本是 float64，苹果的 GPU 不支持",
    "without a GPU, one process trains on all cores": "没有 GPU 时，一个进程用所有核心训练",
    "one process has nobody to share with": "只有一个进程，无需分布式",
    "Windows has no NCCL": "Windows 没有 NCCL",
    "one process has all statistics": "只有一个进程，统计量本来就是全部的",
    "PyTorch has it for GPUs only": "PyTorch 只在 GPU 上支持",
    "this hardware does not multiply bfloat16": "该硬件不支持 bfloat16 乘法",
    "half precision is for GPUs": "半精度只适用于 GPU",
    "it speeds up copies to a GPU only": "只能加快向 GPU 的拷贝",
}

words = Phrases(TEXTS)


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

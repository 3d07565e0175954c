"""The texts of the page in English and Chinese, and numbers for people."""

from __future__ import annotations

from markupsafe import escape

from nest_ssl.apps.pages.text import Phrases, Words


def note_words(note: str) -> Words:
    """Return a comparison's note in both languages; what has no translation stays as it is."""
    chinese = note
    for english, translation in NOTES.items():
        chinese = chinese.replace(english, translation)
    return Words(escape(note), escape(chinese))


def difference(value: float) -> str:
    """Return a difference as 1.2e-07; exactly 0 is `0`, and only that."""
    return "0" if value == 0 else f"{value:.1e}"


def measured(value: float) -> str:
    """Return a loss or norm with all digits of single precision."""
    return f"{value:.9g}"


TEXTS: dict[str, tuple[str, str]] = {
    "title": ("NeMo and nest_ssl, number by number", "NeMo 与 nest_ssl 逐数比较"),
    "nemo": ("NeMo", "NeMo"),
    "ours": ("nest_ssl", "nest_ssl"),
    # verdict
    "identical": ("Bit-identical", "逐位一致"),
    "within": ("Equal within tolerance", "在容差内一致"),
    "different": ("Different", "不一致"),
    "compared": (
        "Compared {steps:step}, {calls:layer call}, {tensors:tensor}, {numbers} numbers: "
        "{equal} of {values} values are the same to the last bit, {mismatches} differ beyond the tolerance.",
        "比较了 {steps} 步、{calls} 次层调用、{tensors} 个张量、{numbers} 个数值："
        "{values} 项中 {equal} 项逐位相同，{mismatches} 项超出容差。",
    ),
    "settings_differ": (
        "The settings of the two runs differ: {settings} ({more} more).",
        "双方的设置不同：{settings}（另有 {more} 项）。",
    ),
    "other_stream": (
        "NeMo {version} draws other random numbers than NeMo {ours}, which nest_ssl follows: "
        "compare the mathematics with <code>nest-ssl align --replay</code>.",
        "NeMo {version} 的随机数顺序与 nest_ssl 所遵循的 NeMo {ours} 不同："
        "请用 <code>nest-ssl align --replay</code> 比较计算本身。",
    ),
    "curves_part": (
        "Every recorded step agrees, but loss, gradient norm or learning rate differs from step {step} on. "
        "Record that step completely: <code>--save-steps {step}</code>.",
        "记录的各步均一致；损失、梯度范数或学习率自第 {step} 步起分开。"
        "请完整记录该步：<code>--save-steps {step}</code>。",
    ),
    "look_here": ("Look here first", "从这里查起"),
    "first_layer": (
        "{name} is the first layer in data order that diverges: step {step}, call {position} of {calls}, "
        "largest difference {absolute} (relative {relative}).",
        "按数据流顺序，{name} 是第一个出现差异的层："
        "第 {step} 步，第 {position}/{calls} 次调用，最大差异 {absolute}（相对 {relative}）。",
    ),
    "first_bit": (
        "The first bit differs earlier, within the tolerance: {name} ({section}), {absolute}.",
        "更早已有容差内的位差异：{name}（{section}），{absolute}。",
    ),
    "before_layers": (
        "Before any layer there is a mismatch in {section}: {name}, {absolute}. It may explain the later differences.",
        "在所有层之前，{section}中已有不一致：{name}，{absolute}。后面的差异可能由此而来。",
    ),
    "no_layer": (
        "No layer diverges. The first mismatch is in {section}: {name}, {absolute}.",
        "所有层均一致。第一处不一致在{section}：{name}，{absolute}。",
    ),
    "worst": (
        "Worst difference: {absolute} (relative {relative}), {name} ({section}).",
        "最大差异：{absolute}（相对 {relative}），{name}（{section}）。",
    ),
    "place": ("{name}, step {step}", "{name}，第 {step} 步"),
    "curves_equal": (
        "Loss and gradient norm are also the same to the last bit at all {steps:logged step}.",
        "全部 {steps} 个记录步的损失与梯度范数也逐位相同。",
    ),
    "curves_differ": (
        "<strong>Loss or gradient norm differs from step {step} on</strong>, by at most {worst} ({steps:logged step}).",
        "在 {steps} 个记录步中，<strong>损失或梯度范数自第 {step} 步起不同</strong>（最大 {worst}）。",
    ),
    "replayed": (
        "Replay: our model used NeMo's batch, weights, mask and dropout. "
        "The mathematics is compared, the random streams are not.",
        "重放：我们的模型使用了 NeMo 的批次、权重、掩码和 dropout。比较的是计算本身，不包括随机数流。",
    ),
    "independent": (
        "Not a replay: both sides drew their own data, weights, mask and dropout from the same seed.",
        "非重放：双方用同一随机种子各自产生数据、权重、掩码和 dropout。",
    ),
    # parts
    "parts": ("Part by part", "各部分结果"),
    "structure": ("model structure", "模型结构"),
    "initial weights": ("initial weights", "初始权重"),
    "batch": ("batch", "批次"),
    "layers": ("layers", "各层"),
    "forward": ("forward outputs", "前向输出"),
    "loss": ("loss", "损失"),
    "gradients": ("gradients", "梯度"),
    "weights": ("updated weights", "更新后权重"),
    "part": ("Part", "部分"),
    "matched": ("Matched", "匹配"),
    "identical_count": ("Bit-identical", "逐位相同"),
    "worst_absolute": ("Worst absolute", "最大绝对差"),
    "worst_relative": ("Worst relative", "最大相对差"),
    "where": ("Where", "位置"),
    "choose_step": ("Step", "步"),
    "not_compared": ("not compared", "未比较"),
    "legend_identical": ("same to the last bit", "逐位相同"),
    "legend_within": ("within tolerance", "容差内"),
    "legend_different": ("beyond tolerance", "超出容差"),
    # charts
    "layer_errors": ("Error of each layer, in data order", "各层误差（按数据流顺序）"),
    "layer_chart": (
        "Largest absolute difference of each of {calls:layer call} at step {step}, on a logarithmic scale: "
        "{equal} equal (●), {within} within tolerance (○), {beyond} beyond (◆).",
        "第 {step} 步 {calls} 次层调用各自的最大绝对差（对数坐标）："
        "{equal} 相同（●），{within} 在容差内（○），{beyond} 超出（◆）。",
    ),
    "inside_others": (
        "Called as a layer by one side only; the layer around each holds its result and is compared:",
        "只有一方以层的形式调用；包含它的层含有其结果，已参与比较：",
    ),
    "no_layers": ("No layer was recorded at this step.", "这一步没有记录任何层。"),
    "point_here": ("Point at the plot to read its values.", "将指针移到图上查看数值。"),
    "exactly_equal": ("exactly equal", "完全相等"),
    "not_comparable": ("not comparable", "无法比较"),
    "tolerance_rule": (
        "A number agrees if |ours − NeMo's| ≤ {atol} + {rtol} × |NeMo's|; "
        "the line shows {atol}, so a point above it can still agree by the relative part.",
        "若 |我方 − NeMo| ≤ {atol} + {rtol} × |NeMo| 则视为一致；图中虚线为 {atol}，线上方的点仍可能因相对部分而一致。",
    ),
    "stripes": (
        "Stripes are blocks of the model; a number is a layer of the encoder.",
        "条纹表示模型的各个模块；单独的数字是编码器的层号。",
    ),
    "curves": ("Loss and gradient norm", "损失与梯度范数"),
    "curve_loss": ("Loss", "损失"),
    "curve_grad_norm": ("Gradient norm", "梯度范数"),
    "curve_caption": (
        "{what} over {steps:step}: bit-identical at {equal}, largest difference {worst}.",
        "{what}，{steps} 步：{equal} 步逐位相同，最大差异 {worst}。",
    ),
    "no_curves": ("The runs logged no step in common.", "两次运行没有共同的记录步。"),
    "lr_differs": ("Learning rate: differs from step {step} on.", "学习率：自第 {step} 步起不同。"),
    # tables
    "tables": ("Every value that differs", "所有不同的值"),
    "table_summary": ("{matched} of {total} match", "{matched}/{total} 匹配"),
    "before_steps": ("Before the first step", "第一步之前"),
    "nothing_differs": ("Nothing differs.", "没有不同的值。"),
    "column_order": ("No.", "序号"),
    "column_name": ("Name", "名称"),
    "column_result": ("Largest difference", "最大差异"),
    "column_relative": ("Relative", "相对"),
    "column_shape": ("Shape", "形状"),
    "column_note": ("Note", "说明"),
    # environment
    "environment": ("Both sides", "双方环境"),
    "setting": ("Setting", "项目"),
    "parameters": ("Parameters", "参数量"),
    "tolerance": ("Tolerance", "容差"),
    "differs": ("differs", "不同"),
}

words = Phrases(TEXTS)

NOTES: dict[str, str] = {
    "only in NeMo's recording": "仅在 NeMo 的记录中",
    "only in NeMo's model": "仅在 NeMo 的模型中",
    "only in our model": "仅在我方的模型中",
    "only in ours": "仅在我方",
    "passes no tensor": "不传递张量",
    "its input": "其输入",
    "no frame was masked: NaN in NeMo, 0 in ours (docs/numerics.md)": "无掩码帧：NeMo 为 NaN，我方为 0",
}

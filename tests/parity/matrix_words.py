"""The texts of docs/parity.md in two languages; `{}` stands for figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.parity.variants import GROUPS


@dataclass(frozen=True)
class Language:
    """The texts of the page in one language."""

    title: str
    verdict: str
    made: str
    legend: str
    bases: str
    all_bases: str
    environment: str
    columns: str
    resumed: str
    equal: str
    different: str
    empty: str
    headings: Mapping[str, str]


ENGLISH = Language(
    title="Parity with NeMo",
    verdict="**{equal} of {rows} variants are equal to the last bit**: {values} tensors and numbers compared, "
    "{losses} losses among them.",
    made="Made on {day} by `python start.py parity --matrix docs/parity.md`, which trains every variant with NeMo and "
    "with nest_ssl from the same seed and compares batches, tokens, masks, log-probabilities, losses, gradients, "
    "learning rates, validations, and the weights before and after. Do not edit: make it again.",
    legend="A result is the last loss, and a digest of everything recorded (except the loss of a batch without masked "
    "frames: NaN in NeMo, 0 here, see [numerics](numerics.md)). The last column counts the tensors and numbers "
    "compared. XLarge and XXLarge have their true widths and fewer layers: two such trainings do not fit into the "
    "memory of a small machine.",
    bases="A variant is its changes to one of these bases, which are changes to `config/nest_fast-conformer.yaml`. "
    "`model.` is left out, `~` removes a key, `{dummy}` is the dummy corpus and `{mixed}` the one of "
    "`tests/parity/corpora.py`.",
    all_bases="all",
    environment="| | NeMo | nest_ssl |",
    columns="| Variant | Changes | Steps | NeMo | nest_ssl | Bits equal |",
    resumed="resumed after {}",
    equal="yes, {}",
    different="**no**: {}",
    empty="; {} batches without masked frames",
    headings={heading: heading for heading in GROUPS},
)
CHINESE = Language(
    title="与 NeMo 的逐位一致性",
    verdict="**{rows} 个变体中有 {equal} 个逐位相同**：共比较 {values} 个张量和数值，其中 {losses} 个损失。",
    made="由 `python start.py parity --matrix docs/parity.md` 于 {day} 生成：每个变体用同一随机种子分别以 NeMo 和"
    " nest_ssl 训练，比较批次、token、掩码、对数概率、损失、梯度、学习率、验证结果以及训练前后的权重。"
    "请勿手工修改，重新生成即可。",
    legend="结果为最后一步的损失和全部记录的摘要（没有掩码帧的批次的损失除外：NeMo 为 NaN，这里为 0，见"
    "[数值说明](numerics.zh.md)）。最后一列是比较过的张量和数值的个数。XLarge 和 XXLarge 保持真实宽度、减少层数："
    "小机器的内存放不下两个这样的训练。",
    bases="每个变体是对下列基础配置之一的改动，而基础配置是对 `config/nest_fast-conformer.yaml` 的改动。省略 `model.`；"
    "`~` 表示删除该键；`{dummy}` 是示例语料，`{mixed}` 是 `tests/parity/corpora.py` 生成的语料。",
    all_bases="全部",
    environment="| | NeMo | nest_ssl |",
    columns="| 变体 | 改动 | 步数 | NeMo | nest_ssl | 逐位相同 |",
    resumed="第 {} 步后续训",
    equal="是，{}",
    different="**否**：{}",
    empty="；{} 个批次没有掩码帧",
    headings={
        "Whole models": "完整模型",
        "Sub-sampling": "下采样",
        "Attention": "注意力",
        "Convolution and norm": "卷积与归一化",
        "Layers": "层",
        "Targets, masks, decoder, loss": "目标、掩码、解码器、损失",
        "Data and augmentation": "数据与增强",
        "Data by lhotse": "lhotse 数据",
        "Features": "特征",
        "Optimizers": "优化器",
        "Schedules": "学习率调度",
        "Training": "训练",
        "Precision": "精度",
    },
)

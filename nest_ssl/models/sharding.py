"""One model divided among processes, each of which holds a part of every weight, gradient and moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from nest_ssl.models.ssl import EncDecDenoiseMaskedTokenPredModel


def shard(model: EncDecDenoiseMaskedTokenPredModel, mesh: DeviceMesh) -> None:
    """Divide what is trained among the processes of a mesh; once. What is frozen stays whole.

    Weights are gathered for the time of their use: a layer's for that layer, or all for the whole step where `fast`
    reads them without calling the layers.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if isinstance(model, FSDPModule):
        return
    frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
    if not model.fast:
        for layer in model.encoder.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=frozen)
    for method in ("training_step", "validation_step"):  # what Lightning calls instead of `forward`
        register_fsdp_forward_method(model, method)

"""Record what training steps do, batch by batch and layer by layer: one recorder for NeMo and for nest_ssl.

It also runs in NeMo's environment, where no other part of nest_ssl exists: its modules import only each other, by
relative names. A recording is a folder:

    model_structure.pkl  metadata.pkl  initial_weights.pt
    step_N/  batch.pt  forward_output.pt  loss.pt  parameter_gradients.pt  parameter_weights.pt  layer_outputs.pkl
             metadata.pkl

`metadata.pkl` and `model_structure.pkl` are pickles of plain values; all others are written by `torch.save` and
read by `torch.load(..., weights_only=True)`.
"""

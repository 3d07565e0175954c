"""Export a trained encoder for other programs: ONNX, torch.export, or weights with a model card."""

from nest_ssl.apps.export.export import Exported, export

__all__ = ["Exported", "export"]

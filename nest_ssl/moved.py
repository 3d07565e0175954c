"""Former import paths, which earlier documentation gave, and the modules that they lead to now."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "nest_ssl.audio": "nest_ssl.data.audio",
    "nest_ssl.encoding": "nest_ssl.apps.features",
    "nest_ssl.features": "nest_ssl.model",
    "nest_ssl.features.mel": "nest_ssl.model.mel",
    "nest_ssl.features.spec_augment": "nest_ssl.model.spec_augment",
    "nest_ssl.losses": "nest_ssl.model",
    "nest_ssl.losses.mlm": "nest_ssl.model.loss",
    "nest_ssl.modules": "nest_ssl.model",
    "nest_ssl.modules.conformer": "nest_ssl.model.conformer",
    "nest_ssl.modules.conformer.encoder": "nest_ssl.model.conformer.encoder",
    "nest_ssl.modules.decoder": "nest_ssl.model.decoder",
    "nest_ssl.modules.masking": "nest_ssl.model.masking",
    "nest_ssl.modules.quantizer": "nest_ssl.model.quantizer",
    "nest_ssl.training.command_line": "nest_ssl.config.command_line",
    "nest_ssl.training.config": "nest_ssl.config.compose",
}


class MovedModules(MetaPathFinder, Loader):
    """Finds a module under its former path; it is the same module object as under its present path."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in; `exec_module` puts the real module in its place."""
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


def keep_old_paths() -> None:
    """Make former paths importable; a module is loaded when its former path is imported."""
    sys.meta_path.insert(0, MovedModules())  # first: otherwise the former parent would load a second copy

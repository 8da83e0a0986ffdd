"""Public modules as objects: what lets them be pickled."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class Importable(ModuleType):
    """A module that pickles as its name, also where it is a subclass of the type that `cloudpickle` knows."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)

"""Objects that a user names: ``my_package.my_module:MyClass`` or ``folder/file.py:MyClass``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError


def load_object(path: str, kind: type[Any], key: str) -> Any:
    """Import what a setting names.

    Parameters
    ----------
    path : str
        ``MODULE:ATTRIBUTE``; modules of the current folder are found, installed or not. In place
        of the module a file may stand, ``FILE.py:ATTRIBUTE``.
    kind : type
        What the attribute must be: an instance of it, or for ``type`` a class.
    key : str
        The setting, for errors.

    Raises
    ------
    ConfigError
        If there is no such module or attribute, it raises while it is imported, or is of another
        kind.
    """
    module_name, colon, attribute = path.rpartition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(key, path, "must be MODULE:ATTRIBUTE")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")
    try:
        module = _from_file(module_name) if module_name.endswith(".py") else None
        found = getattr(module or importlib.import_module(module_name), attribute)
    except AttributeError:
        raise ConfigError(key, path, f"{module_name} has no {attribute}") from None
    except Exception as error:  # whatever a user's module raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(key, path, f"cannot be imported: {reason}") from error
    if not isinstance(found, kind):
        raise ConfigError(key, path, f"must be a {kind.__name__}, not a {type(found).__name__}")
    return found


def _from_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    name = f"_loaded_from_{file.stem}_{abs(hash(file))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

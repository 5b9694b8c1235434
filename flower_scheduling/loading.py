"""Objects that a user names: ``my_package.my_module:MyClass`` or ``folder/file.py:MyClass``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from .errors import ConfigError
from .process_exit import exits_raised

_LIBRARIES: Final = [
    sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
]


def load_object(path: str, kind: type[Any], key: str, folder: Path | None = None) -> Any:
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
    folder : Path, optional
        Where modules are looked for first.

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
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
    try:
        with exits_raised():
            if module_name.endswith(".py"):
                module = _from_file(module_name)
            else:
                module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        text = error.msg if isinstance(error, SyntaxError) else error  # the place comes behind it
        reason = f"{type(error).__name__}: {text}{_place(error)}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            where = "the current folder" if folder is None else "its folder"
            reason += f"; {where} is {(folder or Path.cwd()).resolve()}"
        raise ConfigError(key, path, f"cannot be imported: {reason}") from error
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(key, path, f"{module_name} has no {attribute}") from None
    if not isinstance(found, kind):
        raise ConfigError(key, path, f"must be a {kind.__name__}, not a {type(found).__name__}")
    return found


def _place(error: BaseException) -> str:
    """Return file and line of an error in brackets: of the user's code, if that is behind it."""
    if isinstance(error, SyntaxError):
        places = [(error.filename, error.lineno, False)] if error.filename else []
    else:
        places = [
            (frame.f_code.co_filename, line, _is_library(frame))
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") != __name__ and not _is_importer(frame)
        ]
    own = [place for place in places if not place[2]] or places
    if not own:
        return ""
    name, line, _ = own[-1]
    with suppress(ValueError):  # it is elsewhere
        name = str(Path(name).resolve().relative_to(Path.cwd()))
    return f" ({name}, line {line})"


def _is_importer(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] == "importlib" or frame.f_code.co_filename.startswith("<")


def _is_library(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    file = frame.f_code.co_filename
    return name.partition(".")[0] == __package__ or any(map(file.startswith, _LIBRARIES))


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

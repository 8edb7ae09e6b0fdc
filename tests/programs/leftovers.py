"""For the programs of the tests: what an agent has left in the modules of the process."""

import sys
import types
from collections.abc import Iterator
from typing import Any

LIBRARIES = ("mlx_lm", "mlx_vlm", "mlx.core")


def ours(value: Any) -> bool:
    """Tell whether `value` is an object, function or handle of the agent's."""
    if isinstance(value, (types.ModuleType, types.GenericAlias)):
        return False
    # Past __class__, which a wrapt proxy gives as the class of what it wraps.
    code = getattr(type(value), "__module__", "")
    if type(value) is types.FunctionType:
        code = value.__globals__.get("__name__", "")
    return str(code).startswith("mlx_autobind")


def defaults(function: types.FunctionType) -> Iterator[Any]:
    """Yield the default arguments of `function`."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def left() -> list[str]:
    """Return where the agent can still be found, its own modules and names apart."""
    found = [type(finder).__name__ for finder in sys.meta_path if ours(finder)]
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or name.startswith("mlx_autobind"):
            continue
        if name.startswith(LIBRARIES) and type(module) is not types.ModuleType:
            found.append(f"the class of {name}")
        for key, value in list(vars(module).items()):
            if ours(value):
                found.append(f"{name}.{key}")
            if type(value) is types.FunctionType:
                found += [f"a default of {name}.{key}" for each in defaults(value) if ours(each)]
            if isinstance(value, type) and str(value.__module__).startswith(LIBRARIES):
                found += [f"{name}.{key}.{at}" for at, held in vars(value).items() if ours(held)]
    return found

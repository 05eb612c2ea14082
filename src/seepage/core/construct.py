"""Calling a constructor with options that came as plain data, as a spec holds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from seepage.core.errors import InvalidValue, UnknownName

T = TypeVar("T")


def construct(name: str, function: Callable[..., T], options: Mapping[str, object]) -> T:
    """Call `function(**options)`; a misspelt, missing or unusable option is one clear sentence.

    Args:
        name: What messages call the function.
        function: A class or factory.
        options: By parameter name; none is made up.

    Example:
        >>> from seepage.core.reconstruction import Certificate
        >>> construct("Certificate", Certificate, {"residal": 0.0})
        Traceback (most recent call last):
        ...
        seepage.core.errors.UnknownName: unknown option 'residal' of Certificate; did you mean \
'residual'? (known: residual, unique)
    """
    parameters = inspect.signature(function).parameters
    for option in options:
        if option not in parameters:
            raise UnknownName("option", option, parameters, where=f"of {name}")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise InvalidValue(f"{name} needs the option {option!r}, which is not given")
    try:
        return function(**options)
    except TypeError as error:
        # What is left is a value of the wrong type, such as a string compared with a number.
        raise InvalidValue(f"{name} cannot use {dict(options)!r}: {error}") from error


def described(name: str, options: Mapping[str, object]) -> str:
    """Write the call, for records and tables.

    Example:
        >>> described("Prune", {"ratio": 0.9})
        'Prune(ratio=0.9)'
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"

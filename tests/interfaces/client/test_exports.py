"""What users of the client library import: the package has every type of its methods."""

import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import twinlog


def types_of(annotation: Any) -> Iterator[type]:
    """The classes that an annotation names, also inside of others."""
    arguments = typing.get_args(annotation)
    if isinstance(annotation, type) and not arguments:
        yield annotation
    for argument in arguments:
        yield from types_of(argument)


@pytest.mark.parametrize("library", [twinlog.MirrorClient, twinlog.RemoteClusterUtils])
def test_types_of_arguments_and_results_are_exported(library: type) -> None:
    """Goal: a caller can annotate what it gets without importing a module that may move."""
    methods = [method for _, method in inspect.getmembers(library, inspect.isfunction)]
    named = {
        found
        for method in methods
        if not method.__name__.startswith("_")
        for annotation in typing.get_type_hints(method).values()
        for found in types_of(annotation)
        if found.__module__.startswith("twinlog.")
    }
    assert twinlog.TopicPartition in named
    assert {found.__name__ for found in named} <= set(twinlog.__all__)
    assert all(getattr(twinlog, found.__name__) is found for found in named)


def test_every_exported_name_is_found() -> None:
    assert [name for name in twinlog.__all__ if getattr(twinlog, name, None) is None] == []

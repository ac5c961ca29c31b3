"""The tree of exceptions."""

from __future__ import annotations

import inspect
import pickle

import pytest

from gemmjit import errors

OWN = [getattr(errors, name) for name in errors.__all__]


def test_every_exception_is_listed_and_named_in_the_tree():
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == "gemmjit.errors"
    }
    assert defined == set(errors.__all__)
    for name in errors.__all__:
        assert name in (errors.__doc__ or "")


@pytest.mark.parametrize("exception", OWN, ids=lambda e: e.__name__)
def test_one_base_catches_all(exception):
    assert issubclass(exception, errors.GemmjitError)
    assert exception.__doc__


@pytest.mark.parametrize(
    ("exception", "builtin"),
    [
        (errors.InvalidProblemError, ValueError),
        (errors.InvalidConfigError, ValueError),
        (errors.InvalidDtypeError, TypeError),
        (errors.CaptureError, RuntimeError),
        (errors.LaunchError, RuntimeError),
        (errors.EmulatorError, RuntimeError),
    ],
)
def test_builtin_bases(exception, builtin):
    assert issubclass(exception, builtin)


@pytest.mark.parametrize("exception", OWN, ids=lambda e: e.__name__)
def test_survives_a_process_boundary(exception):
    again = pickle.loads(pickle.dumps(exception("argument: expected; got")))
    assert type(again) is exception
    assert str(again) == "argument: expected; got"


def test_compile_error_keeps_log_and_source():
    error = errors.CompileError("message", log="the log", source="the source")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert (str(one), one.log, one.source) == ("message", "the log", "the source")

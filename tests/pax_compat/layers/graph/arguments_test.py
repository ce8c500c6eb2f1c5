"""Layers that pick, join and reshape, against numpy."""

import logging

import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.graph import arguments
from pax_compat.nested_map import NestedMap

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
Y = X + 100


def _run(config, *args):
  return config.Instantiate().apply({}, *args)


@pytest.mark.parametrize(
  ('config', 'args', 'expected'),
  [
    (arguments.Apply.config(fn=np.add), (X, Y), X + Y),
    (arguments.ApplyToEach.config(fn=np.square), (X,), X**2),
    (arguments.ApplyToEach.config(fn=np.square), (X, None), (X**2, None)),
    (arguments.Select.config(), (X,), X),
    (arguments.Select.config(), (X, Y), (X, Y)),
    (arguments.Select.config(indices=[1]), (X, Y), Y),
    (arguments.Select.config(indices=[1, 0, 1]), (X, Y), (Y, X, Y)),
    (arguments.Reshape.config(shape=[4, -1]), (X,), X.reshape(4, 6)),
    (arguments.Reshape.config(shape=[-1]), ({'x': X},), {'x': X.ravel()}),
    (arguments.Concat.config(axis=1), (X, Y), np.concatenate([X, Y], 1)),
    (arguments.Slice.config(key=[(None,), 0]), (X,), X[:, 0]),
    (arguments.Slice.config(key=[1, (0, 3, 2)]), (X,), X[1, 0:3:2]),
    (arguments.Slice.config(key=[0]), ({'x': X},), {'x': X[0]}),
    (arguments.LogShapes.config(), (X, Y), (X, Y)),
    (
      arguments.MakeNestedMap.config(keys=['a', 'b.c']),
      (X, Y),
      NestedMap(a=X, b=NestedMap(c=Y)),
    ),
  ],
)
def test_what_is_returned(config, args, expected):
  got = _run(config, *args)
  assert type(got) is type(expected) or not isinstance(got, tuple | dict)
  np.testing.assert_equal(got, expected)


def test_shapes_are_logged(caplog):
  with caplog.at_level(logging.INFO):
    _run(arguments.LogShapes.config(), X, NestedMap(y=Y))
  assert 'argument 0 is float32[2, 3, 4]' in caplog.text
  assert "argument 1 is {'y': 'float32[2, 3, 4]'}" in caplog.text


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (arguments.Select.config(indices=[2]), 'has 2, .* expected 0 to 1'),
    (arguments.MakeNestedMap.config(keys=['a']), 'got 2 arguments; expected a'),
  ],
)
def test_what_is_refused(config, message):
  with pytest.raises(errors.UserError, match=message):
    _run(config, X, Y)

"""Tests of dataset functions."""

import functools

import fiddle as fdl
import pytest

from pax_compat import config, errors
from pax_compat.inputs import dataset_functions

_OFFERED = {'seed': 3, 'is_training': True}


def numbers(path: str, seed: int, size: int = 2):
  """Returns its arguments."""
  return path, seed, size


def nothing():
  """Has no arguments."""
  return 'nothing'


def _call(function):
  return dataset_functions.bound(function, _OFFERED, where='Mine.data')()


@pytest.mark.parametrize(
  ('function', 'made'),
  [
    (nothing, 'nothing'),
    (lambda seed, is_training: (seed, is_training), (3, True)),
    (lambda **kwargs: kwargs, {}),
    (functools.partial(numbers, 'a'), ('a', 3, 2)),
    (functools.partial(numbers, path='a', seed=5), ('a', 5, 2)),
    (config.Config(numbers, path='a', size=7), ('a', 3, 7)),
    (config.Config(numbers, path='a', seed=5), ('a', 5, 2)),
    (fdl.Partial(numbers, path='a'), ('a', 3, 2)),
    (fdl.Partial(numbers, 'a', 5), ('a', 5, 2)),
    (dict, {}),
  ],
)
def test_a_function_gets_the_arguments_that_it_has(function, made):
  assert _call(function) == made


@pytest.mark.parametrize(
  ('function', 'message'),
  [
    (7, 'Mine.data is 7; expected a function, or a Config'),
    (numbers, 'Mine.data is a function that requires path; expected them to'),
    (
      config.Config(numbers, path=config.REQUIRED),
      'Mine.data.path is required',
    ),
  ],
)
def test_invalid_functions(function, message):
  with pytest.raises(errors.UserError, match=message):
    _call(function)


def test_whether_a_function_has_an_argument():
  asks = functools.partial(dataset_functions.asks_for, name='seed')
  assert asks(numbers)
  assert asks(config.Config(numbers, path='a'))
  assert not asks(config.Config(numbers, path='a', seed=5))
  assert not asks(functools.partial(numbers, seed=5))
  assert not asks(nothing)

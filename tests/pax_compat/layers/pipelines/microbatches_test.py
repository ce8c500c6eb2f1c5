"""Splitting batches into microbatches."""

import doctest

import jax
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.pipelines import microbatches

X = np.arange(12).reshape(6, 2)


def test_examples():
  found = doctest.testmod(microbatches)
  assert found.attempted and not found.failed


@pytest.mark.parametrize(
  'number,size,want', [(3, None, 3), (None, 3, 2), (2, 3, 2), (6, None, 6)]
)
def test_number(number, size, want):
  assert microbatches.number('Layer', 6, number, size) == want


@pytest.mark.parametrize(
  'number,size,message',
  [
    (4, None, 'Layer.num_microbatches is 4'),
    (None, 5, 'Layer.microbatch_size is 5'),
    (None, 0, 'Layer.microbatch_size is 0'),
    (3, 3, 'num_microbatches=3 and microbatch_size=3'),
  ],
)
def test_numbers_that_do_not_divide(number, size, message):
  with pytest.raises(errors.UserError, match=f'{message}.* 6 examples'):
    microbatches.number('Layer', 6, number, size)


def test_split_and_join():
  parts = microbatches.split({'x': X}, 3)['x']
  np.testing.assert_array_equal(parts, [X[0::3], X[1::3], X[2::3]])
  np.testing.assert_array_equal(microbatches.join(parts), X)


@pytest.mark.parametrize('number', [3, None])
def test_the_arguments_of_each_microbatch(number):
  parts = microbatches.split(X, 3)
  whole = X if number else parts
  tree = {'own': whole, 'mask': X[:1], 'name': 'x', 'none': None, 'rate': 0.5}
  given = microbatches.PerMicrobatch('Layer', tree, len(whole), number)
  got = jax.jit(lambda i: given.get(i)['own'])(2)
  np.testing.assert_array_equal(got, parts[2])
  same = {**given.get(1), 'own': None}
  assert same.pop('mask') is tree['mask']
  assert same == {'own': None, 'name': 'x', 'none': None, 'rate': 0.5}


def test_an_array_of_another_batch():
  with pytest.raises(errors.UserError, match=r'Layer: .* \[4\]; expected 6'):
    microbatches.PerMicrobatch('Layer', [np.ones(4)], 6, 3)

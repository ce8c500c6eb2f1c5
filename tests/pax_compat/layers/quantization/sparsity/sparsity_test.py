"""Masks of sparse weights, against loops in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.layers.quantization.sparsity import sparsity
from pax_compat.layers.quantization.sparsity import sparsity_hparams as hparams

_RNG = np.random.default_rng(0)


def _groups(shape, order, size, offset=1, block=1):
  """Yields the indices of each group of blocks, as lists of blocks."""
  axis = -2 if order == 'C' else -1
  indices = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axis, -1)
  rows = indices.reshape(-1, indices.shape[-1] // block, block)
  if rows.shape[1] % (size * offset):
    rows = rows.reshape(1, -1, block)
  for row in rows:
    for first in range(0, len(row), size * offset):
      for start in range(first, first + offset):
        yield [row[start + i * offset] for i in range(size)]


@pytest.mark.parametrize('order', ['C', 'R'])
@pytest.mark.parametrize(
  'shape, n, m, offset, block',
  [
    ((8, 8), 2, 4, 0, 0),
    ((8, 16), 1, 4, 2, 0),
    ((8, 8), 1, 2, 0, 2),
    ((16, 16), 1, 2, 2, 4),
    ((3, 4, 6), 1, 2, 0, 0),
    ((6, 6), 3, 4, 0, 0),  # Groups run on from row to row.
    ((4, 4), 4, 4, 0, 0),
    ((4, 4), 0, 4, 0, 0),
  ],
)
def test_the_largest_n_of_each_group_of_m_are_kept(
  shape, n, m, offset, block, order
):
  weights = _RNG.normal(size=shape).astype(np.float32)
  mask = sparsity.get_sparsity_mask(
    jnp.asarray(weights), n, m, order=order, offset=offset, block_size=block
  )
  assert mask.shape == shape and mask.dtype == bool
  flat, scores = np.asarray(mask).ravel(), np.abs(weights).ravel()
  seen = 0
  for group in _groups(shape, order, m, max(offset, 1), max(block, 1)):
    sums = np.array([scores[i].sum() for i in group])
    kept = np.zeros(m, bool)
    kept[np.argsort(-sums, kind='stable')[:n]] = True
    for indices, keeps in zip(group, kept, strict=True):
      assert (flat[indices] == keeps).all()
      seen += len(indices)
  assert seen == weights.size and flat.sum() == weights.size * n // m


def test_of_equal_scores_the_first_is_kept():
  mask = sparsity.get_sparsity_mask(jnp.ones([2, 4]), 2, 4)
  np.testing.assert_array_equal(mask, [[True, True, False, False]] * 2)
  mask = sparsity.get_sparsity_mask_channelwise(jnp.ones([2, 4]), 0.5)
  np.testing.assert_array_equal(mask, [[True, True, False, False]] * 2)


@pytest.mark.parametrize('dim', [0, 1, -1])
def test_channels_with_the_smallest_sums_are_pruned(dim):
  scores = np.abs(_RNG.normal(size=[3, 5, 8])).astype(np.float32)
  mask = sparsity.get_sparsity_mask_channelwise(jnp.asarray(scores), 0.4, dim)
  channels = np.moveaxis(np.asarray(mask), dim, 0)
  sums = np.moveaxis(scores, dim, 0).reshape(len(channels), -1).sum(-1)
  kept = round(0.6 * len(channels))
  assert sorted(np.argsort(-sums)[:kept]) == [
    i for i, channel in enumerate(channels) if channel.all()
  ]
  assert sum(channel.any() for channel in channels) == kept
  one = sparsity.get_sparsity_mask_channelwise(jnp.asarray(scores), 1.0, dim)
  assert one.sum() == scores.size // len(channels)
  removed = sparsity.apply_sparsity(jnp.asarray(scores), mask, dim)
  assert removed.shape[dim] == kept


def test_unstructured_pruning_takes_a_percentage_and_only_adds_to_it():
  weights = jnp.asarray(_RNG.normal(size=[20, 50]), jnp.float32)
  mask = sparsity.get_sparsity_mask_unstructured(weights, None, 30.0)
  order = np.argsort(np.abs(np.asarray(weights)).ravel())
  assert not np.asarray(mask).ravel()[order[:300]].any()
  assert mask.sum() == 700
  # What was pruned stays pruned, however large it becomes.
  grown = jnp.where(mask, weights, 100.0)
  more = sparsity.get_sparsity_mask_unstructured(grown, mask, 50.0)
  assert more.sum() == 500 and not (more & ~mask).any()
  np.testing.assert_array_equal(
    sparsity.get_sparsity_mask_unstructured(grown, mask, 0.0), mask
  )
  all_kept = sparsity.get_sparsity_mask_unstructured(weights, None, 0.0)
  assert all_kept.all()


def test_the_rate_of_a_polynomial_schedule():
  schedule = hparams.PolynomialDecayParams(10.0, 70.0, 100, 300, 3.0)
  expected = {0: 0, 99: 0, 100: 10, 300: 70, 1000: 70}
  expected |= {200: 70 - 60 * 0.5**3, 150: 70 - 60 * 0.75**3}
  for step, rate in expected.items():
    np.testing.assert_allclose(schedule.rate(jnp.asarray(step)), rate, 1e-5)


def test_scores_are_weighted_by_inputs():
  weight = _RNG.normal(size=[3, 4]).astype(np.float32)
  inputs = _RNG.normal(size=[2, 5, 3]).astype(np.float32)
  score = sparsity.compute_score(
    jnp.asarray(weight), 'activation_weighted', jnp.asarray(inputs)
  )
  expected = [
    [abs(w) * np.abs(inputs[..., i]).sum() for w in row]
    for i, row in enumerate(weight)
  ]
  np.testing.assert_allclose(score, expected, rtol=1e-5)
  with pytest.raises(errors.UserError, match=r'\[3, 4\], and inputs \(3, 4\)'):
    sparsity.compute_score(
      jnp.asarray(weight), 'activation_weighted', jnp.zeros([3, 4])
    )


def test_sizes_that_do_not_fit_are_refused():
  weight = jnp.ones([3, 6])
  for settings, words in (
    (dict(n_sparsity=5, m_sparsity=4), '5 of 4 are kept'),
    (dict(n_sparsity=2, m_sparsity=4), 'expected a multiple of M'),
    (dict(n_sparsity=1, m_sparsity=2, block_size=4), 'multiple of block_size'),
    (dict(n_sparsity=1, m_sparsity=2, order='X'), "order is 'X'"),
    (dict(n_sparsity=1, m_sparsity=2, offset=-1), 'offset -1'),
  ):
    with pytest.raises(errors.UserError, match=words):
      sparsity.get_sparsity_mask(weight, **settings)
  with pytest.raises(errors.UserError, match='needs two dimensions'):
    sparsity.get_sparsity_mask(jnp.ones([4]), 2, 4, order='C')


def test_masks_are_compiled_into_a_step():
  weights = jnp.asarray(_RNG.normal(size=[8, 8]), jnp.float32)
  settings = hparams.SparsityHParams(
    weight_params=hparams.WeightSparsityParams((1, 4))
  )
  compiled = jax.jit(
    lambda w: sparsity.new_mask(w, jnp.ones_like(w, bool), 0, settings)
  )
  np.testing.assert_array_equal(
    compiled(weights), sparsity.get_sparsity_mask(weights, 1, 4, order='C')
  )

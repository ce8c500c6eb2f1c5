"""Tests of what takes the place of tokens, by counting and by exact rules.

Shapes: B batch, T time.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers.models import masked_lm

V, MASK = 50, 3
# No token of theirs, so that a token at random differs from one that stays.
_B, _T = 400, 100
_LENGTHS = np.arange(_B)[:, None] % _T + 1
_PADDINGS = (np.arange(_T) >= _LENGTHS).astype(np.float32)
_IDS = np.random.default_rng(0).integers(10, 20, [_B, _T]).astype(np.int32)


def _augment(ids=_IDS, paddings=_PADDINGS, *, seed=0, jit=True, **fields):
  fields = {'vocab_size': V, 'mask_token_id': MASK, **fields}
  layer = masked_lm.MaskedLmDataAugmenter.config(**fields).Instantiate()

  def apply(ids, paddings):
    rngs = {base_layer.RANDOM: jax.random.key(seed)}
    return layer.apply({}, ids, paddings, rngs=rngs)

  ids, mask = (jax.jit(apply) if jit else apply)(ids, paddings)
  return np.asarray(ids), np.asarray(mask)


def _assert_share(found, wanted, number):
  """Whether the fraction of draws is within four standard errors."""
  assert abs(found - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / number)


@pytest.mark.parametrize(
  'probs', [(0.12, 0.015, 0.015), (0.2, 0.3, 0.1), (0.5, 0.25, 0.25)]
)
def test_shares(probs):
  names = ('mask_prob', 'random_prob', 'same_prob')
  ids, mask = _augment(**dict(zip(names, probs, strict=True)))
  tokens = _PADDINGS == 0
  number = tokens.sum()
  mask_prob, random_prob, _ = probs
  _assert_share(mask[tokens].mean(), min(sum(probs), 1 - 1e-6), number)
  # Ten tokens in fifty look as if they had stayed, and one is the mask.
  _assert_share(
    (ids == MASK).sum() / number, mask_prob + random_prob / V, number
  )
  other = (ids != MASK) & (ids != _IDS)
  _assert_share(other.sum() / number, random_prob * (1 - 2 / V), number)


def test_the_defaults_are_those_of_bert():
  """15% of the tokens: of these 80% masked, 10% at random, 10% unchanged."""
  config = masked_lm.MaskedLmDataAugmenter.config()
  probs = (config.mask_prob, config.random_prob, config.same_prob)
  np.testing.assert_allclose(probs, 0.15 * np.array([0.8, 0.1, 0.1]))


def test_tokens_that_are_not_to_be_found_stay():
  ids, mask = _augment()
  assert set(np.unique(mask)) == {0, 1}
  np.testing.assert_array_equal(ids[mask == 0], _IDS[mask == 0])
  np.testing.assert_array_equal(mask * _PADDINGS, 0)


def test_neither_rows_nor_columns_go_as_a_whole():
  _, mask = _augment(paddings=np.zeros_like(_PADDINGS))
  assert mask.mean(0).max() < 0.5 and mask.mean(1).max() < 0.5
  assert mask.mean(0).min() > 0


def test_random_tokens_are_all_there_are():
  ids, mask = _augment(mask_prob=0.0, random_prob=1.0, same_prob=0.0)
  drawn = ids[mask == 1]
  counts = np.bincount(drawn, minlength=V)
  assert len(counts) == V
  for count in counts:
    # Fifty shares are compared, so one of four standard errors is rare.
    _assert_share(count / len(drawn), 1 / V, len(drawn))


def test_random_tokens_avoid_some():
  avoid = [7, 0, V - 1, 8]
  ids, mask = _augment(
    mask_prob=0.0, random_prob=1.0, same_prob=0.0, random_avoid_ids=avoid
  )
  drawn = ids[mask == 1]
  assert set(drawn) == set(range(V)) - set(avoid)
  counts = np.bincount(drawn, minlength=V)
  share = 1 / (V - len(avoid))
  for token in (1, 6, 9, V - 2):
    _assert_share(counts[token] / len(drawn), share, len(drawn))


def test_certainty():
  everything = dict(random_prob=0.0, same_prob=0.0)
  ids, mask = _augment(mask_prob=1.0, **everything)
  np.testing.assert_array_equal(mask, 1 - _PADDINGS)
  np.testing.assert_array_equal(ids, np.where(_PADDINGS, _IDS, MASK))
  ids, mask = _augment(mask_prob=0.0, random_prob=0.0, same_prob=1.0)
  np.testing.assert_array_equal(mask, 1 - _PADDINGS)
  np.testing.assert_array_equal(ids, _IDS)


def test_the_key_says_which():
  first = _augment(seed=1)
  for again in (_augment(seed=1), _augment(seed=1, jit=False)):
    for got, want in zip(again, first, strict=True):
      np.testing.assert_array_equal(got, want)
  other = _augment(seed=2)
  assert not np.array_equal(other[1], first[1])


def test_evaluation_masks_as_training_does():
  with base_layer.eval_mode():
    in_eval = _augment()
  for got, want in zip(in_eval, _augment(), strict=True):
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('dtype', [np.int32, np.uint16])
def test_dtypes_whatever_the_layer_computes_in(dtype):
  ids, mask = _augment(_IDS.astype(dtype), fprop_dtype=jnp.bfloat16)
  assert ids.dtype == dtype and mask.dtype == np.float32
  np.testing.assert_array_equal(ids, _augment()[0])


def _fails(fields, message, ids=_IDS):
  with pytest.raises(errors.UserError, match=message):
    _augment(ids, **fields)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'mask_prob': -0.1}, 'expected probabilities whose sum'),
    ({'mask_prob': 0.98}, r'\(0.98, 0.015, 0.015\); expected probabilities'),
    (
      {'mask_prob': 0.0, 'random_prob': 0.0, 'same_prob': 0.0},
      'whose sum is more than 0',
    ),
    ({'mask_token_id': -1}, 'mask_token_id: -1 is not a token'),
    ({'mask_token_id': V}, f'mask_token_id: {V} is not a token'),
    ({'random_avoid_ids': [1, V]}, 'random_avoid_ids: 50 is not a token'),
    ({'random_avoid_ids': range(V)}, 'has all tokens'),
  ],
)
def test_settings_that_make_no_sense(fields, message):
  _fails(fields, message)


def test_tokens_that_are_not_integers():
  _fails({}, 'dtype float32; expected integers', _IDS.astype(np.float32))

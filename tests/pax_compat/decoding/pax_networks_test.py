"""Networks by Pax's conventions decode as those that allocate their states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.config import REQUIRED, Config
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test

P, STEPS = greedy_test.P, greedy_test.STEPS


class PaxLm(base_layer.BaseLayer):
  """Has no `init_states`: a call fills the decode states."""

  inner_tpl: Config = REQUIRED

  def setup(self):
    self.create_child('inner', self.inner_tpl)

  def __call__(self, ids, paddings, labels=None, **keywords):
    return self.inner(ids, paddings, labels, **keywords)

  def extend_step(self, ids, segment_pos):
    assert ids.ndim == segment_pos.ndim == 1
    return self.inner.extend_step(ids, segment_pos)


@functools.cache
def _params():
  return greedy_test.random_weights(greedy_test.lm_config())


class LmOfOtherIds(PaxLm):
  """Reads as its prefix what `extra_input_kwargs` give it."""

  def __call__(self, ids, paddings, labels=None, *, read, **keywords):
    return self.inner(read, paddings, labels, **keywords)


def _decode(settings, *, pax=PaxLm, **fields):
  lm, params = greedy_test.lm_config(), _params()
  if pax:
    lm, params = pax.config(inner_tpl=lm), {'inner': params}
  model = models.LanguageModel.config(
    lm_tpl=lm, decoder_tpl=settings
  ).Instantiate()

  @jax.jit
  def run(params, batch):
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        {PARAMS: {'lm': params}},
        batch,
        method=model.decode,
        mutable=[DECODE_CACHE],
        # As in Pax's programs.
        rngs={RANDOM: jax.random.PRNGKey(3)},
      )
    return out

  return run(params, NestedMap({**greedy_test.prefix_batch(), **fields}))


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, fields',
  [
    (GreedyDecoderHParams, {}),
    (GreedyDecoderHParams, {'fprop_for_prefix': True}),
    (SampleDecoderHParams, {'num_samples': 3, 'k': 5}),
    (
      SampleDecoderHParams,
      {
        'num_samples': 3,
        'k': 5,
        'fprop_for_prefix': True,
        'max_decode_steps': [2, STEPS],
      },
    ),
    (BeamSearchHParams, {'beam_size': 3, 'fprop_for_prefix': True}),
  ],
)
def test_decoding(kind, fields):
  settings = kind(
    **{'seqlen': P + STEPS, 'max_decode_steps': STEPS, 'eos_id': 3, **fields}
  )
  out, want = (_decode(settings, pax=pax) for pax in (PaxLm, None))
  assert set(out) == set(want)
  for name in ('output_ids', 'decode_lengths', 'prefix_ids', 'prefix_lengths'):
    np.testing.assert_array_equal(out[name], want[name], err_msg=name)
  np.testing.assert_allclose(out.logprobs, want.logprobs, atol=1e-4)


def test_a_call_gets_further_inputs():
  settings = SampleDecoderHParams(
    seqlen=P + STEPS,
    max_decode_steps=STEPS,
    num_samples=2,
    temperature=0.0,
    fprop_for_prefix=True,
    use_extra_input_kwargs=True,
  )
  batch = greedy_test.prefix_batch()
  want = _decode(settings)
  # Prefixes are right-aligned when they are read.
  ids = np.stack(
    [
      np.roll(row, P - int(np.sum(paddings == 0)))
      for row, paddings in zip(batch['ids'], batch['paddings'], strict=True)
    ]
  )
  same, other = (
    _decode(settings, pax=LmOfOtherIds, extra_input_kwargs={'read': x})
    for x in (ids, ids * 0)
  )
  np.testing.assert_array_equal(same.logprobs, want.logprobs)
  assert np.any(other.logprobs != want.logprobs)
  with pytest.raises(errors.UserError, match='takes no other inputs'):
    _decode(settings, pax=None)


class LmThatChangesItsStates(PaxLm):
  """Keeps the ids that it has read backwards, [T, B]."""

  def __call__(self, ids, paddings, labels=None, **keywords):
    self.update_decode_state('read', ids[:, ::-1].T)
    return super().__call__(ids, paddings, labels, **keywords)

  def extend_step(self, ids, segment_pos):
    read = self.get_decode_state('read')
    assert read.shape[1] == len(ids)
    self.update_decode_state('read', jnp.roll(read, 1, axis=0).at[0].set(ids))
    return super().extend_step(ids, segment_pos)

  def transform_decode_state(self, transform_fn):
    changed = transform_fn(self.get_decode_state('read'), 1, 0)
    self.update_decode_state('read', changed)
    self.inner.transform_decode_state(transform_fn)
    CALLS.append(transform_fn)


CALLS = []


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, fields',
  [
    (SampleDecoderHParams, {'num_samples': 2, 'k': 5}),
    (BeamSearchHParams, {'beam_size': 2}),
  ],
)
def test_a_network_may_change_its_states_itself(kind, fields):
  CALLS.clear()
  settings = kind(
    seqlen=P + 2, max_decode_steps=2, eos_id=3, fprop_for_prefix=True, **fields
  )
  out = _decode(settings, pax=LmThatChangesItsStates)
  assert len(CALLS) >= 2
  want = _decode(settings, pax=None)
  np.testing.assert_array_equal(out.output_ids, want.output_ids)
  np.testing.assert_allclose(out.logprobs, want.logprobs, atol=1e-4)

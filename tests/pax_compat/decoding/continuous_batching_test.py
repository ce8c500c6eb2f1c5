"""Continuous batching: each sequence is the one that it is alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PARAMS, RANDOM
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  GreedyDecoderHParams,
  SampleDecoderHParams,
)
from pax_compat.decoding import continuous_batching
from pax_compat.layers import models
from pax_compat.nested_map import NestedMap
from tests.pax_compat.decoding import greedy_test, table_network

P, STEPS = 8, 7
SLOTS = 2


def _rngs():
  return {RANDOM: jax.random.key(5)}


class _Engine:
  """Decodes prefixes in slots, two at once."""

  def __init__(self, model, variables, steps):
    self.model, self.variables, self.steps = model, variables, steps

    def decoder():
      return model.bind(variables, rngs=_rngs()).slot_decoder(
        model.decoder_tpl, slots=SLOTS, positions=P + STEPS
      )

    def insert(slots, slot, ids, length, max_steps):
      with base_layer.eval_mode():
        return decoder().insert(
          slots,
          slot,
          continuous_batching.single_prefix(ids, length),
          max_steps=max_steps,
          temperature=jnp.float32(getattr(model.decoder_tpl, 'temperature', 0)),
        )

    def decode(slots):
      with base_layer.eval_mode():
        return decoder().decode(slots, self.steps)

    self.insert, self.decode = jax.jit(insert), jax.jit(decode)
    with base_layer.eval_mode():
      self.slots = decoder().empty()

  def run(self, prompts):
    """Returns the tokens of each; those in the slots change all the time."""
    waiting = list(enumerate(prompts))
    owners, found, most = [None] * SLOTS, {}, 0
    while len(found) < len(prompts):
      for slot in range(SLOTS):
        if owners[slot] is None and waiting:
          owners[slot], (ids, max_steps) = waiting.pop(0)
          padded = np.pad(ids, (0, P - len(ids))).astype(np.int32)
          self.slots = self.insert(
            self.slots, slot, padded, np.int32(len(ids)), np.int32(max_steps)
          )
      self.slots = self.decode(self.slots)
      slots = jax.device_get(self.slots.replace(keys=None, states=None))
      most = max(most, sum(owner is not None for owner in owners))
      for slot in range(SLOTS):
        if owners[slot] is not None and slots.done[slot]:
          end = slots.position[slot] + 1
          found[owners[slot]] = slots.ids[slot, slots.offsets[slot] : end]
          owners[slot] = None
    assert most == SLOTS
    return [found[i].tolist() for i in range(len(prompts))]


def _alone(model, variables, prompts):
  """Returns the tokens of each prompt, decoded in a batch of its own."""

  @jax.jit
  def run(ids, length, max_steps):
    batch = NestedMap(ids=ids[None], paddings=jnp.zeros([1, P]))
    batch.prefix_lengths = length[None]
    if isinstance(model.decoder_tpl, SampleDecoderHParams):
      batch.per_example_max_decode_steps = max_steps[None]
    with base_layer.eval_mode():
      (_, out, _), _ = model.apply(
        variables,
        batch,
        method=model.decode,
        mutable=[DECODE_CACHE],
        rngs=_rngs(),
      )
    return out.output_ids.reshape(-1), out.decode_lengths.reshape(())

  found = []
  for ids, max_steps in prompts:
    out, end = run(
      np.pad(ids, (0, P - len(ids))).astype(np.int32),
      np.int32(len(ids)),
      np.int32(max_steps),
    )
    found.append(np.asarray(out)[: int(end)].tolist())
  return found


def _prompts(vocab_size):
  rng = np.random.default_rng(0)
  lengths = [3, 8, 1, 5, 2]
  steps = [7, 2, 5, 7, 1]
  return [
    (rng.integers(1, vocab_size, length), most)
    for length, most in zip(lengths, steps, strict=True)
  ]


def _settings(cls=SampleDecoderHParams, **fields):
  fields = {'seqlen': P + STEPS, 'max_decode_steps': STEPS, **fields}
  return cls(**{'fprop_for_prefix': True, 'eos_id': -1, **fields})


@pytest.mark.slow
def test_sequences_are_those_that_are_decoded_alone():
  model = models.LanguageModel.config(
    lm_tpl=greedy_test.lm_config('repeated'),
    decoder_tpl=_settings(k=0),
  ).Instantiate()
  params = greedy_test.random_weights(model.lm_tpl)
  variables = {PARAMS: {'lm': params}}
  prompts = _prompts(greedy_test.V)
  want = _alone(model, variables, prompts)
  assert _Engine(model, variables, 3).run(prompts) == want


@functools.cache
def _table_model(settings):
  table = np.random.default_rng(3).normal(size=(4, 4)) * 2
  return models.LanguageModel.config(
    lm_tpl=table_network.Table.config(table=table, vocab_size=4),
    decoder_tpl=settings,
  ).Instantiate()


def test_samples_of_slots_are_those_of_the_examples_alone():
  model = _table_model(_settings(k=0, eos_id=3))
  prompts = _prompts(4)
  want = _alone(model, {}, prompts)
  assert _Engine(model, {}, 2).run(prompts) == want
  ended = [
    len(x) - len(p) < most for x, (p, most) in zip(want, prompts, strict=True)
  ]
  assert any(ended) and not all(ended)


def test_what_is_refused():
  for settings, message in (
    (_settings(num_samples=2), 'decoder_tpl.num_samples is 2; expected 1, to'),
    (_settings(BeamSearchHParams), 'BeamSearchHParams, which does not decode'),
    (
      _settings(GreedyDecoderHParams, fprop_for_prefix=False),
      'fprop_for_prefix is False; expected True',
    ),
  ):
    with pytest.raises(errors.UserError, match=message):
      _Engine(_table_model(settings), {}, 1)


@pytest.mark.parametrize('name', ['prefill', 'insert', 'generate'])
def test_praxis_methods_name_ours(name):
  model = models.LanguageModelContinuousBatching.config().Instantiate()
  with pytest.raises(errors.UserError, match='expected slot_decoder'):
    getattr(model, f'sample_{name}')()

"""Sampling of any model with any function of a step, by Pax's calls."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.decoding import decoder_utils, pax_sampling
from pax_compat.sampling.token_samplers import DefaultNextTokenSampler

# Rows of one prefix token; after token i the most likely one is NEXT[i].
NEXT = [2, 3, 4, 1, 0]
EOS, T = 1, 6


class Chain(base_layer.BaseLayer):
  """The next token depends on the last one only."""

  sharpness: float = 50.0

  def __call__(self):
    self.add_summary('before', jnp.ones(()))

  def extend_step(self, ids, segment_pos):
    self.add_summary('positions', segment_pos)
    return self.sharpness * jax.nn.one_hot(jnp.asarray(NEXT)[ids], len(NEXT))


def step(model, ids, segment_pos):
  return model.extend_step(ids, segment_pos)


def run(function, *, sharpness=50.0, **keywords):
  model = Chain.config(name='chain', sharpness=sharpness).Instantiate()
  given = keywords.pop('ids', jnp.asarray([[0], [4]]))

  def decode(model, ids):
    model()
    return function(model, ids=ids, **keywords)

  mutable = [base_layer.DECODE_CACHE, base_layer.SUMMARIES]
  apply = jax.jit(nn.apply(decode, model, mutable=mutable))
  return apply({}, given, rngs={base_layer.RANDOM: jax.random.key(3)})


def sample(model, ids, num_samples=1, **keywords):
  return pax_sampling.sample_decode(
    model,
    step,
    None,
    None,
    DefaultNextTokenSampler(top_k=0),
    ids,
    jnp.zeros(ids.shape),
    T,
    num_samples,
    prefix_lengths=jnp.ones(len(ids), jnp.int32),
    **keywords,
  )


def test_the_most_likely_tokens_until_the_end():
  def greedy(model, ids):
    return pax_sampling.greedy_decode(
      model, step, ids, jnp.zeros(ids.shape), T, eos_id=EOS
    )

  result, _ = run(greedy)
  np.testing.assert_array_equal(
    result.output_ids, [[[0, 2, 4, 0, 2, 4]], [[4, 0, 2, 4, 0, 2]]]
  )
  np.testing.assert_array_equal(result.decode_lengths, [[T], [T]])
  result, _ = run(greedy, ids=jnp.asarray([[3], [0]]))
  np.testing.assert_array_equal(
    result.output_ids, [[[3, 1, 0, 0, 0, 0]], [[0, 2, 4, 0, 2, 4]]]
  )
  np.testing.assert_array_equal(result.decode_lengths, [[2], [T]])
  # 1 at positions without a token.
  np.testing.assert_array_equal(result.logprobs[0, 0, 2:], 1)
  np.testing.assert_allclose(result.logprobs[1, 0, 1:], 0, atol=1e-6)


def test_steps_that_are_counted_stack_summaries():
  keys = jnp.asarray([11, 12])
  options = {
    'sharpness': 1.0,
    'num_samples': 2,
    'gumbel_prng_key': keys,
    'return_entropy_score': True,
    'num_per_token_logprobs': jnp.asarray([2, 2]),
  }
  want, updated = run(sample, **options)
  assert set(updated[base_layer.SUMMARIES]) == {'before'}
  found, updated = run(sample, early_exit=False, **options)
  jax.tree.map(np.testing.assert_array_equal, found, want)
  summaries = updated[base_layer.SUMMARIES]
  assert summaries['before'].value.shape == ()
  np.testing.assert_array_equal(
    np.asarray(summaries['positions']),
    np.broadcast_to(np.arange(T - 1)[:, None], (T - 1, 4)),
  )
  assert summaries['sample_logits'].value.shape == (T - 1, 4, len(NEXT))
  assert found.top_candidate_ids.shape == (2, 2, T, 5)
  assert np.all(np.asarray(found.entropy)[..., 1:] > 0)


def test_guidance_is_of_pairs_of_rows():
  # Without the condition the next token is 0, whose logit guidance lowers.
  result, _ = run(sample, cf_guidance_scale=jnp.asarray([1.5]), temperature=0.0)
  assert result.output_ids.shape == (1, 1, T)
  np.testing.assert_array_equal(result.output_ids[0, 0, :2], [0, 2])


def test_one_sample_without_a_dimension_of_samples():
  read = []

  def vanilla(model, ids):
    return pax_sampling.vanilla_sample_decode(
      model,
      lambda *arguments: read.append(len(arguments)),
      step,
      lambda model, change: read.append(change),
      DefaultNextTokenSampler(top_k=0),
      ids,
      jnp.zeros(ids.shape),
      max_decode_steps=3,
      temperature=0.0,
      eos_id=EOS,
    )

  result, _ = run(vanilla, ids=jnp.asarray([[3], [0]]))
  np.testing.assert_array_equal(result.output_ids, [[3, 1, 0, 0], [0, 2, 4, 0]])
  np.testing.assert_array_equal(result.decode_lengths, [2, 4])
  assert read[0] == 3 and len(read) == 2  # The prefix, then room for tokens.


def test_results_while_decoding_goes_on():
  seen = []
  callback = decoder_utils.StreamingResultCallback(
    lambda result: jax.debug.callback(
      lambda ids: seen.append(np.asarray(ids)), result.output_ids
    )
  )
  run(sample, temperature=0.0, result_callback=callback)
  jax.effects_barrier()
  assert len(seen) == T - 1 and seen[0].shape == (2, 1, 1)


def test_what_is_not_supported():
  for options, match in (
    ({'controlled_decoding': object()}, 'controlled_decoding is not supported'),
    (
      {'decode_loop_mesh_axes_transpose': {'data': 'mdl'}},
      'decode_loop_mesh_axes_transpose is not supported',
    ),
    ({'fprop_for_prefix': True}, 'max_prefix_len is required'),
    ({'optimize_eos': True}, 'expects eos_id'),
    ({'temperature': jnp.ones(3)}, r'temperature has the shape \(3,\)'),
    ({'cf_guidance_scale': jnp.ones([1, 3])}, 'cf_guidance_scale has'),
    ({'enforce_sample_constraints': jnp.ones(2)}, 'sample_constraint and'),
  ):
    with pytest.raises(errors.UserError, match=match):
      run(sample, **options)

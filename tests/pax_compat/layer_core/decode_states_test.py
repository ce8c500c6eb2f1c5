"""Decode states that are changed between steps by Pax's methods.

What they compute is held against praxis in `tests.pax.cases.decoding`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE, PREFIX_DECODE_CACHE
from pax_compat.layer_core import decode_states
from pax_compat.layers.attentions import dot_product
from pax_compat.layers.transformers import pipelined_transformers
from pax_compat.layers.transformers.ssm_transformers import SSMTransformer
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
)

B, D = 2, 4


def _changed(layer, cross_inputs=None, *, method='transform_decode_state'):
  """Returns shapes of states, and of those that are repeated and padded."""
  own = {} if cross_inputs is None else {'cross_inputs': cross_inputs}

  def change(x, batch, time):
    x = jnp.repeat(x, 3, axis=batch)
    return x if time < 0 else jnp.concatenate([x, x], axis=time)

  def run():
    inputs = jnp.zeros([B, 2, D])
    variables = layer.init(jax.random.key(0), inputs, jnp.zeros([B, 2]), **own)
    variables = {'params': base_layer.unbox(variables)['params']}
    _, states = layer.apply(
      variables, B, 5, **own, method='init_states', mutable=[DECODE_CACHE]
    )
    _, after = layer.apply(
      variables | states, change, method=method, mutable=[DECODE_CACHE]
    )
    return states, after

  before, after = jax.eval_shape(run)
  leaves = jax.tree_util.tree_leaves_with_path(before)
  return {
    path[-1].key if hasattr(path[-1], 'key') else path[-2].key: (
      old.shape,
      new.shape,
    )
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True)
  }


def _stack(**fields):
  return StackedTransformer.config(
    model_dims=D, num_layers=1, num_heads=2, hidden_dims=4, **fields
  )


def test_rows_of_cross_attention_are_repeated_but_not_its_positions():
  found = _changed(
    _stack(use_cross_attention=True).Instantiate(), jnp.zeros([B, 7, D])
  )
  assert found['key_state'] == ((B, 5, 2, 2), (3 * B, 10, 2, 2))
  assert found['cross_key_state'] == ((B, 7, 2, 2), (3 * B, 7, 2, 2))


def test_stages_of_a_pipeline():
  layer = pipelined_transformers.PipelinedTransformer.config(
    pipeline_stage=_stack(), num_pipeline_stages=2, num_pipeline_microbatches=1
  ).Instantiate()
  found = _changed(layer)
  assert found['key_state'] == ((2, B, 5, 2, 2), (2, 3 * B, 10, 2, 2))


def test_a_state_space_model_has_no_positions():
  layer = SSMTransformer.config(
    input_dims=D, hidden_dims=4, ssm_dim=D, ssm_nheads=3, ssm_l_max=5
  ).Instantiate()
  [(before, after)] = _changed(layer).values()
  assert (before, after) == ((B, 3, D), (3 * B, 3, D))


class _Opaque(base_layer.BaseLayer):
  """Cannot change its states."""


class _Parent(decode_states.ForwardsDecodeStates, base_layer.BaseLayer):
  def setup(self):
    self.create_child('opaque', _Opaque.config())

  def _layers_with_states(self):
    return [self.opaque]


def test_what_cannot_change_its_states_is_named():
  collections = [DECODE_CACHE, PREFIX_DECODE_CACHE]
  with pytest.raises(
    errors.UserError, match=r'_Opaque has no transform_decode_state\(\)'
  ):
    _Parent.config().Instantiate().apply(
      {}, lambda x, *_: x, method='transform_decode_state', mutable=collections
    )
  attention = dot_product.DotProductAttention.config(
    input_dim=D, hidden_dim=4, num_heads=2
  ).Instantiate()
  for method, args in (
    ('lazy_broadcast_prefix', (2, 3)),
    ('right_align_decode_state_with_prefix', (2, np.negative)),
  ):
    with pytest.raises(errors.UserError, match='DotProductAttentionWithLPB'):
      attention.apply({}, *args, method=method, mutable=collections)


def test_attention_without_a_cache():
  layer = dot_product.DotProductAttention.config(
    input_dim=D, hidden_dim=4, num_heads=2, decode_cache=False
  ).Instantiate()
  x = np.zeros([1, 2, D], np.float32)
  _, states = layer.init_with_output(jax.random.key(0), x, x, x)
  assert set(states) == {'params'}
  _, states = layer.apply(
    {'params': base_layer.unbox(states)['params']},
    x,
    x,
    x,
    mutable=[DECODE_CACHE],
  )
  assert not states
  with pytest.raises(errors.UserError, match='decode_cache is False'):
    layer.apply({}, B, 5, method='init_states', mutable=[DECODE_CACHE])


def test_consolidated_keys_are_rotated():
  fields = dict(input_dim=D, hidden_dim=4, num_heads=2)
  layer = dot_product.DotProductAttention.config(
    **fields, consolidate_rope_key_state=True
  ).Instantiate()
  x = np.zeros([1, 2, D], np.float32)
  with pytest.raises(errors.UserError, match='keys are not rotated'):
    layer.init(jax.random.key(0), x, x, x)

"""What each policy keeps between the forward pass and the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from pax_compat import errors
from pax_compat.layers.checkpoint_policy import (
  AutodiffCheckpointType,
  custom_policy,
)

# Each named value has a different size, by which it is identified.
NAMES = {
  'combined_qkv_proj': 11,
  'query_proj': 12,
  'key_proj': 13,
  'value_proj': 14,
  'context': 15,
  'out_proj': 16,
  'ffn1': 17,
  'ffn1_gate': 18,
  'ffn2': 19,
  'transformer_layer_out': 20,
}
X = np.linspace(0.5, 1.5, 40, dtype=np.float32)
QKV = {'combined_qkv_proj', 'query_proj', 'key_proj', 'value_proj'}
ATTENTION = QKV | {'context', 'out_proj'}


def _named_values(x):
  """Returns a sum that needs each named value for its gradient."""
  return sum(
    jnp.sum(jnp.sin(checkpoint_name(jnp.cos(x[:size]), name)))
    for name, size in NAMES.items()
  )


def _kept(policy) -> set[str]:
  kept = jax.checkpoint(
    _named_values, policy=custom_policy(policy, where='test')
  )
  _, backward = jax.vjp(kept, X)
  sizes = {np.size(x) for x in jax.tree.leaves(backward)}
  return {name for name, size in NAMES.items() if size in sizes}


@pytest.mark.parametrize(
  ('policy', 'names'),
  [
    ('save_nothing', set()),
    ('save_everything', set(NAMES)),
    ('save_qkv_out_proj', QKV | {'out_proj'}),
    ('save_qkv_out_proj_separate', QKV | {'out_proj'}),
    ('save_out_proj', {'out_proj'}),
    ('save_context', {'context'}),
    ('save_encoded_and_out_proj', {'context', 'out_proj'}),
    ('save_dot_for_mlperf_200b', ATTENTION),
    ('save_dot_except_logits_ffn1', ATTENTION | {'ffn2'}),
    ('save_dot_except_logits', ATTENTION | {'ffn1', 'ffn1_gate', 'ffn2'}),
    ('save_transformer_layer_output', {'transformer_layer_out'}),
  ],
)
def test_the_values_that_are_kept(policy, names):
  assert _kept(policy) == names


@pytest.mark.parametrize(
  ('policy', 'sizes'),
  [('save_dot_only', {5, 7}), ('save_dot_with_no_batch_dims', {5})],
)
def test_products_that_are_kept(policy, sizes):
  def products(x):
    weighted = jnp.sin(x[:20].reshape(4, 5).sum(0) @ jnp.ones([5, 5]))
    batched = jnp.einsum('bi,bi->b', x[:21].reshape(7, 3), x[:21].reshape(7, 3))
    return jnp.sum(jnp.sin(weighted)) + jnp.sum(jnp.sin(batched))

  kept = jax.checkpoint(products, policy=custom_policy(policy, where='test'))
  _, backward = jax.vjp(kept, X)
  found = {np.size(x) for x in jax.tree.leaves(backward)}
  assert found & {5, 7} == sizes


@pytest.mark.parametrize('policy', list(AutodiffCheckpointType))
def test_gradients_do_not_depend_on_the_policy(policy):
  kept = jax.checkpoint(
    _named_values, policy=custom_policy(policy, where='test')
  )
  np.testing.assert_allclose(
    jax.grad(kept)(X), jax.grad(_named_values)(X), rtol=1e-6
  )


def test_an_unknown_policy_is_named():
  with pytest.raises(
    errors.UserError,
    match="Repeat: unknown checkpoint policy 'save_nothin'; did you mean:"
    ' save_nothing',
  ):
    custom_policy('save_nothin', where='Repeat')

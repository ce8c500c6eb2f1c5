"""Templates with wrapped layers."""

import jax
import jax.numpy as jnp
import numpy as np

from pax_compat.base_layer import PARAMS
from pax_compat.ghostnorm import embedding, generic_wrapper, linears
from pax_compat.layers import embedding_softmax, normalizations, transformers
from pax_compat.layers import linears as plain_linears


def test_layers_of_a_template_are_replaced_or_wrapped():
  tpl = transformers.Transformer.config(
    input_dims=8, hidden_dims=16, num_heads=2
  )
  made = generic_wrapper.generate_wrapped_template(tpl)
  assert made is tpl
  feed_forward = tpl.tr_fflayer_tpl.fflayer_tpl
  assert feed_forward.linear_tpl.cls is linears.LinearGhostNorm
  assert feed_forward.bias_tpl.cls is linears.BiasGhostNorm
  assert isinstance(tpl.ln_tpl, generic_wrapper.GhostNormPaxConfig)
  assert tpl.ln_tpl.cls is normalizations.LayerNorm
  replaced = generic_wrapper.generate_wrapped_template(
    embedding_softmax.Embedding.config()
  )
  assert replaced.cls is embedding.EmbeddingGhostNorm


def test_a_wrapped_layer_computes_the_same():
  tpl = plain_linears.FeedForward.config(input_dims=4, output_dims=3)
  plain, inputs = tpl.Instantiate(), jnp.ones([2, 4])
  wrapped = generic_wrapper.generate_wrapped_template(
    tpl.clone(), force_wrap=True
  )
  copied = wrapped.clone().Instantiate(input_dims=4)
  variables = copied.init(jax.random.key(0), inputs)
  own = variables[PARAMS][generic_wrapper.LAYER]
  np.testing.assert_array_equal(
    copied.apply(variables, inputs), plain.apply({PARAMS: own}, inputs)
  )
  assert type(wrapped.to_pax_config()) is type(tpl)
  assert wrapped.to_pax_config() == tpl

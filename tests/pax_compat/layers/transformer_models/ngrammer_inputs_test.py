"""N-grammers of models, step by step, against the whole sequence."""

import functools

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import DECODE_CACHE
from pax_compat.layers import (
  embedding_softmax,
  ngrammer,
  transformer_models,
  transformers,
)
from tests.pax_compat.layers.step_by_step import decode

IDS = np.array([[1, 2, 3, 1, 0], [4, 4, 2, 0, 3]])
SIZES = dict(num_heads=2, dim_per_head=4, ngram_emb_dim=2, ngram_vocab_size=20)


def _config(tpl, **fields):
  lm = transformer_models.TransformerLm.config(
    vocab_size=5, model_dims=8, ngrammer_tpl=tpl, **fields
  )
  lm.stacked_transformer_tpl.set(
    num_layers=1, num_heads=2, hidden_dims=8, model_dims=8
  )
  return lm


def _lm(tpl, **fields):
  return _config(tpl, **fields).Instantiate()


def _weights(model, *inputs):
  return base_layer.unbox(jax.jit(model.init)(jax.random.key(0), *inputs))


def _check_steps(lm):
  """Compares steps of 2, 1 and 2 tokens with the whole sequence."""
  paddings = np.zeros(IDS.shape, np.float32)
  with base_layer.eval_mode():
    weights = _weights(lm, IDS, paddings)
    want = jax.jit(lm.apply)(weights, IDS, paddings).logits
    got = decode(lm, weights, IDS, [2, 1, 2], 2, 5)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  return weights


def test_steps_know_the_token_before():
  _check_steps(_lm(ngrammer.Ngrammer.config(unigram_vocab_size=5, **SIZES)))


@pytest.mark.parametrize('repeated', [False, True])
def test_n_grammers_after_attention(repeated):
  pairs = ngrammer.VQNgrammer.config(
    num_clusters=3,
    concat_ngrams=True,
    ngram_using_attention_scores=repeated,
    **SIZES,
  )
  lm = _config(None, post_attention_ngrammer_tpls=[pairs])
  if repeated:
    lm.stacked_transformer_tpl = transformers.StackedTransformerRepeated.config(
      block=lm.stacked_transformer_tpl, x_times=1
    )
  weights = _check_steps(lm.Instantiate())
  names = {
    str(getattr(key, 'key', key))
    for path, _ in jax.tree_util.tree_leaves_with_path(weights)
    for key in path
  }
  assert {'ngrammer', 'ngram_table_1', 'means'} <= names


def test_each_layer_has_an_entry_of_the_n_grammers():
  lm = _config(None, post_attention_ngrammer_tpls=[None] * 2).Instantiate()
  with pytest.raises(errors.UserError, match='2 entries; .*num_layers is 1'):
    jax.eval_shape(lambda: lm.init(jax.random.key(0), IDS, 0.0 * IDS))


def test_decoding_pairs_the_first_position_of_an_example_with_none():
  pairs = ngrammer.VQNgrammer.config(num_clusters=3, **SIZES)
  lm = _lm(None, post_attention_ngrammer_tpls=[pairs.set(concat_ngrams=True)])
  positions = np.array([[0, 1, 0, 1, 2], [0, 0, 1, 2, 3]])
  paddings = np.zeros(IDS.shape, np.float32)
  with base_layer.eval_mode():
    weights = _weights(lm, IDS, paddings)
    apply = jax.jit(lm.apply)
    want = apply(weights, IDS, paddings, segment_pos=positions).logits
    by = {'segment_pos': positions}
    got = decode(lm, weights, IDS, [2, 1, 2], 2, 5, by=by)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_an_encoder_decoder_is_decoded_as_in_pax(caplog):
  pairs = ngrammer.Ngrammer.config(unigram_vocab_size=5, **SIZES)
  stack = transformers.StackedTransformer.config(
    num_layers=1, num_heads=2, hidden_dims=8
  )
  model = transformer_models.TransformerEncoderDecoder.config(
    model_dims=8,
    decoder_ngrammer_tpl=pairs,
    decoder_post_attention_ngrammer_tpls=[pairs],
    encoder_stacked_transformer_tpl=stack,
    decoder_stacked_transformer_tpl=stack.clone(),
    softmax_tpl=embedding_softmax.SharedEmbeddingSoftmax.config(num_classes=5),
  ).Instantiate()
  paddings = np.zeros(IDS.shape, np.float32)
  inputs = (IDS, paddings, IDS, paddings)
  with base_layer.eval_mode():
    weights = _weights(model, *inputs)
    want, state = jax.jit(
      functools.partial(model.apply, mutable=[DECODE_CACHE])
    )(weights, *inputs)
    extend = jax.jit(
      functools.partial(
        model.apply, method='extend_step', mutable=[DECODE_CACHE]
      )
    )
    for step in range(5):
      got, state = extend(
        {**weights, **state}, IDS[:, max(0, step - 1) : step + 1]
      )
      np.testing.assert_allclose(
        got.logits, want.logits[:, step], rtol=1e-4, atol=1e-5
      )
  message = 'no effect, as in Pax: decoder_post_attention_ngrammer_tpls;'
  assert message in caplog.text

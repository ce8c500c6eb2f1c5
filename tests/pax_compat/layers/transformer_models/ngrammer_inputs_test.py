"""N-grammers of models, step by step, against the whole sequence."""

import jax
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import ngrammer, transformer_models
from tests.pax_compat.layers.step_by_step import decode

IDS = np.array([[1, 2, 3, 1, 0], [4, 4, 2, 0, 3]])
SIZES = dict(num_heads=2, dim_per_head=4, ngram_emb_dim=2, ngram_vocab_size=20)


def _lm(tpl, **fields):
  lm = transformer_models.TransformerLm.config(
    vocab_size=5, model_dims=8, ngrammer_tpl=tpl, **fields
  )
  lm.stacked_transformer_tpl.set(
    num_layers=1, num_heads=2, hidden_dims=8, model_dims=8
  )
  return lm.Instantiate()


def test_steps_know_the_token_before():
  lm = _lm(ngrammer.Ngrammer.config(unigram_vocab_size=5, **SIZES))
  paddings = np.zeros(IDS.shape, np.float32)
  with base_layer.eval_mode():
    weights = base_layer.unbox(lm.init(jax.random.key(0), IDS, paddings))
    want = lm.apply(weights, IDS, paddings).logits
    got = decode(lm, weights[PARAMS], IDS, [2, 1, 2], 2, 5)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_n_grammers_after_attention():
  lm = _lm(None, post_attention_ngrammer_tpls=[])
  with pytest.raises(errors.UserError, match='after attention are not'):
    jax.eval_shape(lambda: lm.init(jax.random.key(0), IDS, 0.0 * IDS))

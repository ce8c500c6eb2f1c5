"""Translated Transformer language models against Lingvo's, run for real.

`lm_test` has the task around them, with its training.

Legend: B batch, T time, D model dims, V vocabulary.
"""

import itertools

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers.transformer_models.transformer_lm import (
  LanguageModelType,
)
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import (
  check_layer,
  issues_of,
  translate,
)

B, T, D, V = 3, 6, 8, 12
PADDINGS = (np.arange(T) >= np.array([[T], [4], [1]])).astype(np.float32)
_XENT = ('avg_xent', 'total_xent', 'per_example_xent')

_counter = itertools.count()


def _params(cls='TransformerLm', **fields):
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  params = getattr(layers, cls).Params()
  # Lingvo takes layers of one name for the same.
  params.Set(
    name=f'lm_{next(_counter)}',
    vocab_size=V,
    model_dim=D,
    **{'num_trans_layers': 1, **fields},
  )
  params.trans_tpl.tr_atten_tpl.num_attention_heads = 2
  params.trans_tpl.tr_fflayer_tpl.hidden_dim = 16
  params.softmax.num_shards = 3
  if cls == 'TransformerLm':
    params.emb.Set(vocab_size=V, embedding_dim=D, scale_sqrt_depth=True)
  return params


def _labels():
  rng = np.random.default_rng(3)
  weights = (1 - PADDINGS) * rng.uniform(0.5, 2, [B, T])
  return NestedMap(
    class_ids=rng.integers(0, V, [B, T]).astype(np.int32),
    class_weights=weights.astype(np.float32),
    class_probabilities=rng.dirichlet(np.ones(V), [B, T]).astype(np.float32),
  )


def _fprop(names):
  """Returns Lingvo's computation from [B, T, ...], given those labels."""
  tf = lingvo_runtime.module('tensorflow')
  nested_map = lingvo_runtime.module('lingvo.core.py_utils').NestedMap

  def swapped(x):
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])

  def wrapped(layer, theta, inputs):
    labels = nested_map({k: swapped(_labels()[k]) for k in names})
    output, _ = layer.FProp(
      theta, swapped(inputs), swapped(PADDINGS), labels=labels or None
    )
    if not names:
      return swapped(output.logits)
    result = {name: output[name] for name in _XENT}
    result['per_example_xent'] = swapped(
      tf.reshape(result['per_example_xent'], [T, B])
    )
    return result

  return wrapped


def _call(names):
  def wrapped(layer, inputs):
    labels = NestedMap({k: _labels()[k] for k in names})
    output = layer(inputs, PADDINGS, labels or None)
    return {k: output[k] for k in _XENT} if names else output.logits

  return wrapped


def _inputs(cls):
  rng = np.random.default_rng(2)
  if cls == 'TransformerLm':
    return rng.integers(0, V, [B, T]).astype(np.int32)
  return rng.normal(size=[B, T, D]).astype(np.float32)


def _check(params, names=('class_ids', 'class_weights'), *, do_eval=True):
  cls = params.cls.__name__
  check_layer(
    params,
    [_inputs(cls)],
    fprop=_fprop(names),
    call=_call(names),
    do_eval=do_eval,
  )


@pytest.mark.parametrize('cls', ['TransformerLm', 'TransformerLmNoEmbedding'])
@pytest.mark.parametrize('do_eval', [True, False])
def test_loss(cls, do_eval):
  layers = 2 if do_eval else 1
  _check(_params(cls, num_trans_layers=layers), do_eval=do_eval)


@pytest.mark.parametrize(
  'names', [(), ('class_probabilities', 'class_weights')]
)
def test_logits_and_given_distributions(names):
  _check(_params('TransformerLmNoEmbedding'), names)


def test_learned_scales_of_positions():
  params = _params()
  params.position_emb.Set(
    trainable_scaling=True, trainable_scaling_init=0.5, frequency_scaling=True
  )
  _check(params)


def test_learned_positions():
  params = _params('TransformerLmNoEmbedding')
  layers = lingvo_runtime.module('lingvo.core.layers')
  params.position_emb = layers.LearnablePositionalEmbeddingLayer.Params().Set(
    name='pos', max_pos=9
  )
  _check(params)


@pytest.mark.parametrize(
  ('fields', 'kind'),
  [
    ({'mask_type': 'ngram', 'mask_ngram_order': 2}, LanguageModelType.CAUSAL),
    ({'mask_type': 'eye'}, LanguageModelType.BIDIRECTIONAL),
  ],
)
def test_what_tokens_see(fields, kind):
  params = _params()
  params.trans_tpl.tr_atten_tpl.Set(**fields)
  assert translate(params).config.model_type == kind
  _check(params)


def test_dropout_reaches_the_config():
  params = _params(
    input_dropout_prob=0.1,
    residual_dropout_prob=0.2,
    atten_dropout_prob=0.3,
    relu_dropout_prob=0.4,
  )
  stack = translate(params).config.stacked_transformer_tpl
  layer = stack.transformer_layer_params_tpl
  rates = [
    stack.input_dropout_prob,
    layer.residual_dropout_prob,
    layer.tr_fflayer_tpl.residual_dropout_prob,
    layer.tr_atten_tpl.atten_dropout_prob,
    layer.tr_fflayer_tpl.relu_dropout_prob,
  ]
  np.testing.assert_allclose(rates, [0.1, 0.2, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
  ('path', 'value'),
  [
    ('packed_input', True),
    ('trans_tpl.packed_input', True),
    ('trans_tpl.has_aux_atten', True),
    ('emb.vocab_size', V + 1),
    ('emb.embedding_dim', D + 1),
    ('softmax.apply_pruning', True),
    ('trans_tpl.tr_atten_tpl.residual_function', 'a gate'),
    # Noise that is not the whole task's.
    ('emb.vn.global_vn', True),
    ('trans_tpl.tr_atten_tpl.atten_tpl.vn.global_vn', True),
  ],
)
def test_what_is_not_translated_is_refused(path, value):
  params = _params()
  params.Set(**{path: value})
  (found,) = issues_of(params)
  assert found.startswith(f'layer.{path} ')


def test_a_class_that_is_refused_by_name():
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  (found,) = issues_of(layers.NullLm.Params().Set(name='lm'))
  assert 'lingvo.tasks.lm.layers.NullLm' in found

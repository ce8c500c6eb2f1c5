"""Time-major GPipe stacks whose outputs are mixed, against real Lingvo.

Shapes: B batch, T time, D model dims, V classes.
"""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.layers import TransparentTransformer
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import check_layer, issues_of, translate

B, T, D, V = 2, 5, 8, 12
RNG = np.random.default_rng(0)
IDS, LABELS = RNG.integers(0, V, [2, B, T]).astype(np.int32)
PADDINGS = (np.arange(T) >= np.array([[T], [3]])).astype(np.float32)


def _params(**fields):
  """Returns Params of a language model of two layers, all of which count."""
  gpipe = lingvo_runtime.module('lingvo.core.layers_with_gpipe')
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  stack = gpipe.GPipeTransformerStack.Params().Set(
    num_encoder_layers=2,
    is_transparent=True,
    **{'normalize_encoder': True, **fields},
  )
  stack.emb_tpl.token_emb.Set(vocab_size=V, embedding_dim=D)
  stack.emb_tpl.position_emb.embedding_dim = D
  stack.encoder_tpl.Set(source_dim=D, mask_self_atten=True)
  stack.encoder_tpl.tr_atten_tpl.num_attention_heads = 2
  stack.encoder_tpl.tr_fflayer_tpl.hidden_dim = 12
  stack.softmax_tpl.Set(num_classes=V, input_dim=D, num_shards=1)
  return layers.GPipeTransformerLm.Params().Set(
    name='lm', vocab_size=V, stack=stack
  )


def _fprop(layer, theta, ids, paddings):
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  labels = py_utils.NestedMap(
    class_ids=tf.transpose(LABELS), class_weights=tf.transpose(1 - paddings)
  )
  outputs, _ = layer.FProp(
    theta, tf.transpose(ids), tf.transpose(paddings), None, labels
  )
  return outputs.avg_xent


def _call(layer, ids, paddings):
  labels = NestedMap(class_ids=LABELS, class_weights=1 - paddings)
  return layer(ids, paddings, labels=labels).avg_xent


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'weighted_merger_softmax': False, 'global_weight_scale': 2.0},
    {'minimal_prob': 0.2},
  ],
  ids=','.join,
)
def test_a_mix_of_all_layers(fields):
  params = _params(normalize_encoder=not fields)
  params.stack.transparent_merger_tpl.Set(**fields)
  check_layer(params, [IDS, PADDINGS], fprop=_fprop, call=_call)


def test_weights_are_dropped_as_in_lingvo():
  params = _params(transparent_merger_dropout_prob=0.3)
  stack = translate(params).config.stacked_transformer_tpl
  assert stack.cls is TransparentTransformer
  np.testing.assert_allclose(stack.mixing_dropout_prob, 0.3)


def test_refuses_layers_that_normalise_before_the_mix():
  params = _params()
  params.stack.encoder_tpl.normalize_output = True
  assert 'encoder_tpl.normalize_output' in '\n'.join(issues_of(params))


def test_refuses_a_mix_over_a_mesh_of_devices():
  params = _params(splits=2, device_mesh=np.arange(2), num_micro_batches=2)
  assert 'stack.is_transparent' in '\n'.join(issues_of(params))

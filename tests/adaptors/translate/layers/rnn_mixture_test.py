"""Translated mixtures of recurrent networks against Lingvo's, run for real.

Legend: B batch, T time, D input nodes, N output nodes, E experts, V vocabulary.
"""

import itertools

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate.parity import check_layer, issues_of

B, T, D, N, E, V = 3, 5, 4, 6, 2, 9
PADDINGS = (np.arange(T) >= np.array([[T], [3], [1]])).astype(np.float32)
_XENT = ('avg_xent', 'total_xent', 'per_example_xent')

_counter = itertools.count()


def _params(**fields):
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  params = layers.MoeLm.Params()
  params.emb.Set(vocab_size=V, embedding_dim=D)
  params.rnns.cell_tpl.Set(num_input_nodes=D, num_output_nodes=N)
  params.merge.vocab_size = V
  params.merge.rnns.cell_tpl.Set(num_input_nodes=N, num_output_nodes=N)
  params.merge.softmax.Set(input_dim=N, num_classes=V)
  # Lingvo takes layers of one name for the same.
  name = f'mixture_{next(_counter)}'
  return params.Set(name=name, vocab_size=V, number_of_experts=E, **fields)


def _labels():
  rng = np.random.default_rng(3)
  ids = rng.integers(0, V, [B, T]).astype(np.int32)
  return ids, (1 - PADDINGS) * rng.uniform(0.5, 2, [B, T]).astype('f')


def _fprop(layer, theta, ids):
  tf = lingvo_runtime.module('tensorflow')
  nested_map = lingvo_runtime.module('lingvo.core.py_utils').NestedMap
  classes, weights = map(tf.transpose, _labels())
  output, _ = layer.FProp(
    theta,
    tf.transpose(ids),
    tf.transpose(PADDINGS),
    layer.zero_state(theta, B),
    nested_map(class_ids=classes, class_weights=weights),
  )
  result = {name: output[name] for name in _XENT}
  xent = tf.reshape(result['per_example_xent'], [T, B])
  return {**result, 'per_example_xent': tf.transpose(xent)}


def _call(layer, ids):
  classes, weights = _labels()
  labels = NestedMap(class_ids=classes, class_weights=weights)
  output = layer(ids, PADDINGS, labels)
  return {name: output[name] for name in _XENT}


@pytest.mark.parametrize(('shared', 'merges'), [(True, True), (False, False)])
def test_mixtures(shared, merges):
  ids = np.random.default_rng(2).integers(0, V, [B, T]).astype(np.int32)
  check_layer(
    _params(shared_emb=shared, add_postgating_rnn=merges),
    [ids],
    fprop=_fprop,
    call=_call,
    do_eval=shared,
  )


@pytest.mark.parametrize(
  ('path', 'value'),
  [
    ('packed_input', True),
    ('rnns.name', 'experts'),
    ('emb.vocab_size', V + 1),
    ('rnns.dropout.noise_shape', [1]),
  ],
)
def test_what_is_not_translated_is_refused(path, value):
  params = _params()
  params.Set(**{path: value})
  (found,) = issues_of(params)
  assert found.startswith(f'layer.{path} ')

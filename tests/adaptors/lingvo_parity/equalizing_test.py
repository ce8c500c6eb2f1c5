"""Tests of making Params comparable."""

import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_parity import equalizing
from tests.adaptors import small_experiments

_RNN = 'lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmaxTiny'


def test_dropout_is_off():
  params = small_experiments.task_params(_RNN)
  before = params.ToText()
  quiet, notes = equalizing.equalize(params)
  assert quiet.lm.rnns.dropout.keep_prob == 1.0
  assert quiet.lm.embedding_dropout_keep_prob == 1.0
  assert notes == [
    'off: embedding_dropout_keep_prob 0.75 (1 place(s))',
    'off: keep_prob 0.75 (1 place(s))',
  ]
  # Nothing else changed, and the original did not change.
  quiet.lm.rnns.dropout.keep_prob = 0.75
  quiet.lm.embedding_dropout_keep_prob = 0.75
  assert quiet.ToText() == params.ToText() == before


def test_noise_and_16_bits():
  tf = lingvo_runtime.module('lingvo.compat')
  params = small_experiments.task_params(_RNN)
  params.lm.softmax.fprop_dtype = tf.bfloat16
  params.train.vn_std = 0.1
  quiet, notes = equalizing.equalize(params)
  assert quiet.lm.softmax.fprop_dtype == tf.float32
  assert quiet.train.vn_std == 0
  assert 'it computes in 32 bits' in notes
  assert 'off: variational noise (1 place(s))' in notes


@pytest.mark.parametrize(
  'name,value,quiet',
  [
    ('residual_dropout_prob', 0.1, 0.0),
    ('residual_dropout_prob', 0, 0),
    ('dropout_rate', [0.1, 0.0], [0.0, 0.0]),
    ('zo_prob', 0.2, 0.0),
    ('keep_prob', 0.9, 1.0),
    ('survival_prob', 0.5, 1.0),
    ('second_expert_policy', 'sampling', 'all'),
    ('second_expert_policy', 'all', 'all'),
    ('learning_rate', 0.1, 0.1),
    ('dropout_at_eval', False, False),
    ('dropout_tpl', None, None),
  ],
)
def test_fields(name, value, quiet):
  hyperparams = lingvo_runtime.module('lingvo.core.hyperparams')
  params = hyperparams.Params()
  params.Define(name, value, '')
  params.Define('input', None, '')
  params.Define('train', hyperparams.Params(), '')
  found, notes = equalizing.equalize(params)
  assert found.Get(name) == quiet
  assert bool(notes) == (quiet != value)

"""GShard's models with mixtures of experts, in Lingvo and here.

The auxiliary loss is part of the loss that is compared.
"""

import numpy as np
import pytest

from adaptors.translate.tasks import single
from pax_compat import errors
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)
from tests.adaptors import small_experiments
from tests.adaptors.translate import task_parity

_STEPS = 20


def _params(name, **fields):
  """Returns Params of a stock model, in small and with experts.

  Lingvo's groups at evaluation are the rows of a batch, so there are as many
  groups here.
  """
  params = small_experiments.task_params(name)
  params.builder.Set(
    e_dim=4,
    c_dim=0,
    capacity_factor=1.0,
    moe_hidden_dim=24,
    num_groups=small_experiments.SIZES.batch_size,
  )
  return params.Set(moe=True, aux_loss_coef=0.3, **fields)


def _language_model(**fields):
  return _params('lm.synthetic_packed_input.DenseLm8B2x2', **fields)


def _batches(params):
  return [small_experiments.batch(params, seed=s) for s in range(_STEPS)]


def _check(params, mixtures):
  theirs = task_parity.check(params, _batches(params))
  gates = [path for path in theirs.last if path.endswith('top_2_gating.w')]
  assert len(gates) == mixtures
  for path in gates:
    assert np.any(theirs.gradients[path])


def test_a_language_model_whose_blocks_are_repeated():
  params = _language_model(
    num_transformer_layers=2,
    use_repeat_layer=True,
    sub_layer_types=['attn', 'moe'],
    moe_gated_gelu=True,
  )
  _check(params, 2)


def test_an_encoder_whose_blocks_are_built_one_by_one():
  params = _params(
    'lm.wiki_bert.MLPerfBertDense175B',
    num_transformer_layers=2,
    use_repeat_layer=False,
  )
  _check(params, 1)


def _of_mixture(params):
  """Returns the mixture in the second layer of a model that is translated."""
  params.sub_layer_types = ['attn', 'ffw', 'attn', 'moe']
  model = single.translate_task(params, 'task').config.model
  stack = model.lm_tpl.stacked_transformer_tpl
  [_, layer, *_] = stack.transformer_layer_params_tpl
  assert layer.tr_fflayer_tpl.cls is TransformerFeedForwardMoe
  return layer.tr_fflayer_tpl


def test_how_a_mixture_is_split():
  params = _language_model()
  params.builder.Set(
    device_mesh=np.arange(4).reshape([2, 2]),
    device_mesh_shape=[2, 2],
    emh_split=[0, -1, 1],
    ehm_split=[0, 1, -1],
    eah_split=[0, -1, 1],
    eam_split=[0, -1, -1],
  )
  mixture = _of_mixture(params)
  weights = mixture.weight_split_dims_mapping
  assert weights.emh == ['data', None, 'mdl']
  assert weights.ehm == ['data', 'mdl', None]
  assert weights.me is None
  activations = mixture.activation_split_dims_mapping
  assert activations.egch == ['data', None, None, 'mdl']
  assert activations.egcm == activations.gsec == ['data', None, None, None]
  assert activations.gsm[0] == 'data'


def test_dropout_of_the_inner_layer():
  """Lingvo has it at evaluation, too."""
  params = _language_model()
  params.builder.moe_dropout_rate = 0.25
  dropout = _of_mixture(params).relu_dropout_tpl
  assert (dropout.keep_prob, dropout.dropout_at_eval) == (0.75, True)


@pytest.mark.parametrize(
  ('fields', 'builder', 'message'),
  [
    ({}, dict(gating_func='hashing'), "gating_func.*'hashing' is not tr"),
    ({}, dict(gating_func='optimal_transport'), "gating_func.*'optimal_tr"),
    (
      dict(moe_gated_gelu=True),
      dict(gating_func='token_shuffle'),
      'gating_func.*Lingvo cannot compute gated experts',
    ),
    ({}, dict(moe_activation='HINGE'), "moe_activation.*'HINGE' is not tr"),
    (dict(sub_layer_types=['moe', 'attn']), {}, 'sub_layer_types'),
  ],
)
def test_what_is_refused(fields, builder, message):
  params = _language_model(**fields)
  params.builder.Set(**builder)
  with pytest.raises(errors.UserError, match=message):
    single.translate_task(params, 'task')

"""Settings of sparse weights that are refused."""

import pytest

from pax_compat import errors
from pax_compat.layers.quantization.sparsity import (
  sparsity_hparams,
  sparsity_modes,
)


def _settings(rate=(2, 4), weight=(), **fields):
  params = sparsity_hparams.WeightSparsityParams(rate, **dict(weight))
  return sparsity_hparams.SparsityHParams(weight_params=params, **fields)


_DECAY = sparsity_hparams.PolynomialDecayParams()
_LEARNED = dict(topk_estimator_type='BINARY_MASK')


@pytest.mark.parametrize(
  'settings, words',
  [
    (dict(weight=dict(structure_decay=True)), 'structure_decay is not sup'),
    (dict(weight=dict(mask_decay_weight=0.1)), 'mask_decay_weight is not sup'),
    (dict(weight=dict(sparse_ste_weight=-1.0)), 'sparse_ste_weight is -1'),
    (dict(weight=dict(offset=-8)), 'offset is -8'),
    (
      dict(weight=dict(sparse_ste=True, pruned_value=1.0)),
      'pruned_value is not supported with sparse_ste',
    ),
    (dict(rate=0.5), r'prune_rate is 0.5; with structured_nm expected two'),
    (dict(rate=(4, 2)), 'N at most M'),
    (dict(sparsity_type='unstructured'), r'is \(2, 4\); with unstructured'),
    (dict(rate=101.0, sparsity_type='unstructured'), 'at most 100.0'),
    (dict(rate=50.0, sparsity_type='channelwise_pruning'), 'at most 1.0'),
    (dict(sparsity_type='blocks'), "sparsity_type is 'blocks'; expected one"),
    (dict(order='X'), "order is 'X'; expected one of 'C', 'R'"),
    (dict(topk_estimator_type='SOFT'), "None, 'BINARY_MASK', 'PROB_MASK'"),
    (dict(block_size=-1), 'block_size is -1'),
    (
      dict(rate=0.5, sparsity_type='unstructured', block_size=2),
      'block_size is not supported with unstructured',
    ),
    (
      dict(polynomial_decay_schedule=_DECAY),
      'polynomial_decay_schedule is not supported with structured_nm',
    ),
    (
      dict(weight=dict(sparse_ste=True), **_LEARNED),
      'sparse_ste is not supported with topk_estimator_type',
    ),
    (
      dict(score='activation_weighted', **_LEARNED),
      'score is not supported with topk_estimator_type',
    ),
    (
      dict(rate=None, mode=sparsity_modes.TrainingMode(), **_LEARNED),
      'topk_estimator_type needs weight_params.prune_rate',
    ),
  ],
)
def test_settings_that_are_not_supported_name_themselves(settings, words):
  with pytest.raises(errors.UserError, match=words):
    _settings(**settings)


def test_schedules_that_are_not_possible():
  with pytest.raises(errors.UserError, match='num_shots is 1; expected 2 or'):
    sparsity_modes.FewShotMode(num_shots=1)
  with pytest.raises(errors.UserError, match='end_step is 5; expected more'):
    sparsity_hparams.PolynomialDecayParams(begin_step=5, end_step=5)


@pytest.mark.parametrize(
  'mode, updates',
  [
    (sparsity_modes.TrainingMode(3), [3, 4, 5, 6, 7, 8, 9]),
    (sparsity_modes.OneShotMode(3), [3]),
    (sparsity_modes.FewShotMode(3, 2, 1), [1, 3, 5]),
    (sparsity_modes.MaterializeMode(), []),
    (sparsity_modes.InferenceMode(), []),
  ],
)
def test_the_steps_at_which_masks_are_updated(mode, updates):
  found = []
  for step in range(10):
    if mode.update_cond(step, len(found)):
      found.append(step)
  assert found == updates
  limit = mode.get_num_shots()
  assert limit == -1 or limit == len(updates)

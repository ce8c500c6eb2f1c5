"""Tests of fields of SeqIO inputs that contradict each other."""

import pytest

from adaptors.seqio_input import converters
from pax_compat import errors
from tests.adaptors.seqio_input import tiny_tasks as testing


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  with testing.common_tasks():
    yield


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'mixture_name': None}, 'mixture_name is None and mixture_or_task None'),
    ({'mixture_or_task': object()}, "mixture_name is 'ten' and mixture_or"),
    (
      {'mixture_name': 'tenn'},
      "unknown SeqIO task or mixture 'tenn'.*mean: ten",
    ),
    ({'split_name': None}, 'split_name is required'),
    ({'split_name': 'trian'}, "no split 'trian'; did you mean: train"),
    ({'task_feature_lengths': None}, 'task_feature_lengths is required'),
    ({'feature_converter': None}, 'feature_converter is required'),
    (
      {
        'feature_converter': converters.LanguageModelFeatures(),
        'task_feature_lengths': {'target': 8},
      },
      "has no 'targets', which LanguageModelFeatures needs; did you mean: tar",
    ),
    ({'batch_size': None}, 'batch_size of .* is not set; expected'),
    ({'infeed_host_index': 1}, 'is 1; expected one of 1 hosts'),
    (
      {'enable_symbolic_checkpointing': False},
      'expected True: the position is',
    ),
    (
      {'use_targets_from_input_ds': True},
      'use_targets_from_input_ds is True; expected it in evaluation',
    ),
    (
      {
        'is_training': False,
        'reset_for_eval': True,
        'repeat': True,
      },
      'repeat is True with eval_loop_num_batches=None',
    ),
    (
      {
        'is_training': False,
        'reset_for_eval': True,
        'num_batches_to_skip': 1,
      },
      'num_batches_to_skip is 1; expected it in training only',
    ),
    (
      {'is_training': False, 'deterministic_input': True},
      'deterministic_input is True; expected it in training only',
    ),
    (
      {'repeat': False, 'drop_remainder': False, 'num_infeed_hosts': 2},
      'drop_remainder is False',
    ),
    (
      {
        'is_training': False,
        'reset_for_eval': True,
        'use_targets_from_input_ds': True,
        'num_infeed_hosts': 2,
      },
      'expected one host, not 2',
    ),
  ],
)
def test_invalid_fields(fields, message):
  with pytest.raises(errors.UserError, match=message):
    testing.config('ten', **fields).Instantiate()

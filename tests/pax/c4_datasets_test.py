"""The datasets of the C4 experiments have the fields that paxml's have.

`testdata/pax/c4_datasets.json` was recorded from paxml on one process with one
device: the fields, and by experiment the batch sizes of training and evaluation
and the sequence length.
"""

import json

import pytest

from pax_compat import experiment_sources
from pax_compat.experiment_sources import SourceOptions
from tests import source_tree

_RECORDED = json.loads(
  (source_tree.ROOT / 'testdata/pax/c4_datasets.json').read_text('utf-8')
)
# Fields that are not here: devices in another order than the mesh's, a mock of
# TPUs, and two services that read data.
_MISSING = {
  '_is_mock_tpu': 'NoneType',
  'custom_device_order': 'NoneType',
  'experimental_remote_input': 'False',
  'tf_data_service_address': 'NoneType',
}


@pytest.mark.parametrize('name', _RECORDED['experiments'])
def test_fields(name):
  train, dev = experiment_sources.find(name, SourceOptions()).datasets()
  *sizes, seq_len = _RECORDED['experiments'][name]
  # Of a fraction of a row per device, Pax has 0 rows on few devices.
  assert [train.batch_size, dev.batch_size] == [max(n, 1) for n in sizes]
  for data, fields in (train, _RECORDED['train']), (dev, _RECORDED['eval']):
    assert data.task_feature_lengths == {'targets': seq_len}
    for field, wanted in fields.items():
      if field in _MISSING:
        assert wanted == _MISSING[field] and not hasattr(data, field)
      else:
        assert _text(getattr(data, field)) == wanted, field


def _text(value) -> str:
  """Returns a field as in the recorded file."""
  if value is None:
    return 'NoneType'
  if not hasattr(value, 'reverse_bos_padding'):
    return repr(value)
  return (
    f'LanguageModelFeatures(pack={value.pack},'
    f' use_custom_packing_ops={value.use_custom_packing_ops},'
    f' weights_on_targets_only={value.weights_on_targets_only},'
    f' apply_length_check={value.apply_length_check},'
    f' bos_id={value.bos_id},reverse_bos_padding={value.reverse_bos_padding},'
    f'eos_id={value.eos_id})'
  )

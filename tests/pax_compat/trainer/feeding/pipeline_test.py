"""Tests of the stages of a batch."""

import doctest

import numpy as np
import pytest

from pax_compat import base_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import agreement, pipeline


class Numbered(base_input.BaseInput):
  """Batches with the numbers 1, 2, ..., and strings.

  Attributes:
    end: number of batches.
  """

  batch_size: int = 2
  batch_padding_size: int = 1
  end: int = 2

  def __post_init__(self):
    super().__post_init__()
    self.num_read = 0

  def get_next(self):
    if self.num_read == self.end:
      raise StopIteration
    self.num_read += 1
    return NestedMap(
      x=np.full([2], self.num_read), of=NestedMap(text=np.array(['a', 'bc']))
    )

  def order_digest(self):
    return bytes([self.num_read])


class Rows(agreement.ReplicaRowCheck):
  """Checks rows although there is a single process."""

  def __init__(self, data):
    super().__init__(data)
    self._are_shared = True


def _stages(data, **options):
  return pipeline.stages(
    data,
    put=lambda batch: batch.transform(lambda x: x + 7),
    rows=Rows(data),
    **options,
  )


def _names(stages):
  return [stage.name for stage in stages]


def _batches(stages):
  made = pipeline.Pipeline(stages)
  return list(iter(made.next, None))


def test_the_stages_of_training_and_evaluation():
  data = Numbered()
  common = ['record digest', 'split host fields', 'measure', 'put']
  train = _stages(data, check=lambda batch: None, get_state=lambda: b'')
  assert _names(train) == [
    'read',
    'check arrays',
    'compare with specs',
    *common,
    'record position',
  ]
  evaluation = _stages(data, records_order=True)
  assert _names(evaluation) == [
    'read',
    'check arrays',
    *common,
    'record order',
  ]
  others = _stages(data, drops_padding=True)
  assert [x for x in _names(others) if x not in _names(evaluation)] == [
    'drop padding rows'
  ]


def test_a_batch_becomes_a_device_batch():
  data = Numbered()
  checked = []
  stages = _stages(
    data,
    check=lambda batch: checked.append(batch),
    get_state=lambda: bytes([10 * data.num_read]),
    records_order=True,
  )
  batches = _batches(stages)
  # With a padding row of weight 0, on the devices.
  assert [batch.arrays.x.tolist() for batch in batches] == [
    [8, 8, 7],
    [9, 9, 7],
  ]
  weights = batches[0].arrays.eval_sample_weights - 7
  assert weights.tolist() == [1, 1, 0]
  assert {*batches[0].arrays} == {'x', 'eval_sample_weights'}
  assert batches[0].host['of.text'].tolist() == ['a', 'bc', '']
  assert [batch.input_state for batch in batches] == [b'\n', b'\x14']
  assert [batch.order_digest for batch in batches] == [b'\x01', b'\x02']
  assert batches[0].rows_digest != batches[1].rows_digest
  # Specs are compared with numpy arrays, host fields included.
  assert [batch.of.text[1] for batch in checked] == ['bc', 'bc']


@pytest.mark.parametrize(
  ('dropped', 'field', 'expected'),
  [
    ('record digest', 'rows_digest', b''),
    ('split host fields', 'host', {}),
    ('measure', 'shapes', ''),
    ('record position', 'input_state', None),
    ('record order', 'order_digest', None),
  ],
)
def test_each_stage_can_be_dropped(dropped, field, expected):
  options = dict(get_state=lambda: b'state', records_order=True)
  whole = _stages(Numbered(), **options)
  stages = [stage for stage in whole if stage.name not in (dropped, 'put')]
  assert len(stages) == len(whole) - 2
  [batch, _] = _batches(stages)
  assert getattr(batch, field) == expected
  [complete, _] = _batches(s for s in _stages(Numbered(), **options))
  assert getattr(complete, field) != expected


def test_the_order_of_stages_matters():
  """A digest is of host fields, too, unless these are split off before."""

  def digest(stages, last):
    data = Numbered(end=1)
    get_next = data.get_next

    def with_other_text():
      batch = get_next()
      batch.of.text = np.array(['a', last])
      return batch

    data.get_next = with_other_text
    [batch] = _batches(stages(data))
    return batch.rows_digest

  def split_first(data):
    names = ['read', 'split host fields', 'record digest', 'measure', 'put']
    stages = {stage.name: stage for stage in _stages(data)}
    return [stages[name] for name in names]

  assert digest(_stages, 'b') != digest(_stages, 'c')
  assert digest(split_first, 'b') == digest(split_first, 'c')


def test_only_the_first_stage_ends_the_data():
  def put(batch):
    raise StopIteration

  stages = [
    pipeline.read(lambda: NestedMap(x=np.zeros([1]))),
    pipeline.put_on_devices(put),
  ]
  with pytest.raises(StopIteration):
    pipeline.Pipeline(stages).next()


def test_shapes_and_tokens():
  batch = NestedMap(
    ids=np.zeros([8, 4]),
    src=NestedMap(x=np.zeros([8])),
    paddings=np.array([[0, 0, 1], [0, 1, 1]]),
  )
  assert pipeline.shapes_of(batch) == 'ids[8,4] paddings[2,3] src.x[8]'
  assert pipeline.tokens_in(batch) == 3
  batch.weights = np.array([[1, 0.5], [0, 0]])
  assert pipeline.tokens_in(batch) == 1.5
  assert pipeline.tokens_in(NestedMap(tag=batch)) == 1.5
  assert pipeline.tokens_in(NestedMap(ids=np.zeros(3))) == 0


def test_the_example():
  result = doctest.testmod(pipeline)
  assert result.attempted and not result.failed

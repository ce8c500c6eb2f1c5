"""Tests of building an experiment's inputs."""

import numpy as np
import pytest

from pax_compat import base_input, errors
from pax_compat.inputs import multi_input
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding import dataset_inputs

CLOSED = []


class Counted(base_input.BaseInput):
  broken: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.broken:
      raise OSError('no such file')

  def close(self):
    CLOSED.append(self.name)


@pytest.fixture(autouse=True)
def nothing_closed():
  CLOSED.clear()


def _config(name, **fields):
  return Counted.config(name=name, is_training=name.startswith('tr'), **fields)


def test_inputs_by_their_use():
  configs = [_config('dev'), _config('train'), _config('test')]
  with dataset_inputs.Inputs(configs) as built:
    assert built.train.name == 'train'
    assert list(built.eval) == ['dev', 'test']
    assert built.eval['test'].name == 'test'
    assert built.train.num_infeed_hosts == 1
    assert built.train.infeed_host_index == 0
    assert not CLOSED
  assert sorted(CLOSED) == ['dev', 'test', 'train']


@pytest.mark.parametrize('enabled', [False, True])
def test_the_training_input_alone_learns_that_its_state_is_asked_for(enabled):
  several = multi_input.MultiInput.config(
    name='train',
    is_training=True,
    input_to_params={'a': Counted.config(batch_size=1)},
  )
  with dataset_inputs.Inputs(
    [several, _config('dev')], input_checkpointing_enabled=enabled
  ) as built:
    assert built.train.input_checkpointing_enabled == enabled
    child = built.train.get_child('a')
    assert child.input_checkpointing_enabled == enabled
    assert not built.eval['dev'].input_checkpointing_enabled


class Ids(base_input.BaseInput):
  def get_next(self):
    return NestedMap(ids=np.array([[1, self.batch_size]]))


def test_all_inputs_refuse_ids_that_the_model_does_not_know():
  configs = [
    Ids.config(name=name, batch_size=size, is_training=name == 'train')
    for name, size in (('train', 7), ('dev', 8))
  ]
  with dataset_inputs.Inputs(configs, configs[1:], known_ids=8) as built:
    assert built.train.get_next_padded().ids.tolist() == [[1, 7]]
    for data in (built.eval['dev'], built.decode['dev']):
      with pytest.raises(
        errors.UserError, match="Ids 'dev': .* ids has the id 8 .* below 8"
      ):
        data.peek_padded()
  with dataset_inputs.Inputs(configs) as built:
    assert built.eval['dev'].get_next_padded().ids.tolist() == [[1, 8]]


def test_names_must_differ():
  configs = [_config('train'), _config('a'), _config('b'), _config('a')]
  with pytest.raises(errors.UserError, match='called a; expected names that'):
    dataset_inputs.Inputs(configs)


@pytest.mark.parametrize('names', [['dev'], ['train', 'dev', 'train2']])
def test_exactly_one_is_for_training(names):
  count = len(names) - 1
  with pytest.raises(
    errors.UserError, match=f'{", ".join(names)}, {count} are training'
  ):
    dataset_inputs.Inputs([_config(n) for n in names])


def test_one_that_cannot_be_built_closes_the_others():
  with pytest.raises(OSError, match='no such file'):
    dataset_inputs.Inputs([_config('train'), _config('dev', broken=True)])
  assert CLOSED == ['train']


def test_wrong_fields_are_found_before_anything_is_built():
  wrong = _config('dev', eval_loop_num_batches=-1)
  for datasets, decoded in (([wrong], []), ([], [wrong])):
    with pytest.raises(errors.UserError, match='of dev is None without reset'):
      dataset_inputs.Inputs([_config('train', broken=True), *datasets], decoded)
  assert not CLOSED


def test_what_is_decoded_stands_on_its_own():
  configs = [_config('train'), _config('dev')]
  decoded = [_config('dev', batch_size=3), _config('few')]
  with dataset_inputs.Inputs(configs, decoded) as built:
    assert list(built.decode) == ['dev', 'few']
    assert built.decode['dev'].batch_size == 3
    assert built.eval['dev'].batch_size is None
  assert sorted(CLOSED) == ['dev', 'dev', 'few', 'train']
  with pytest.raises(errors.UserError, match='datasets are called few; '):
    dataset_inputs.Inputs(configs, [_config('few')] * 2)


def test_inputs_learn_their_place_among_the_processes():
  with dataset_inputs.Inputs(
    [_config('train')], num_infeed_hosts=3, infeed_host_index=2
  ) as built:
    assert built.train.num_infeed_hosts == 3
    assert built.train.infeed_host_index == 2


def test_a_global_batch_does_not_depend_on_who_reads_it():
  config = _config('train', batch_size=3, num_infeed_hosts=4)
  for hosts, rows in ((4, 3), (2, 6), (1, 12)):
    with dataset_inputs.Inputs([config], num_infeed_hosts=hosts) as built:
      assert built.train.batch_size == rows
  with pytest.raises(errors.UserError, match='12 rows .4 hosts with 3 each'):
    dataset_inputs.Inputs([config], num_infeed_hosts=5)

"""Tests of the order of training: split over hosts, and resumable."""

import json

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.seqio_input import converters
from pax_compat import errors
from tests.adaptors.seqio_input import tiny_tasks as testing


@pytest.fixture(scope='module', autouse=True)
def _tasks():
  with testing.common_tasks():
    yield


def test_hosts_read_separate_files(tmp_path, log):
  testing.register_lines('lines', tmp_path, files=4, lines=5)
  inputs = testing.hosts(testing.config('lines'), 2)

  found = [testing.texts(data, testing.read(data, 15)) for data in inputs]

  files = [{int(text[1:]) // 5 for text in texts} for texts in found]
  assert sorted(map(len, files)) == [2, 2] and not files[0] & files[1]
  assert 'each of 2 hosts reads separate shards' in log()


def test_hosts_share_the_examples_of_too_few_files(tmp_path, log):
  testing.register_lines('lines', tmp_path, files=2, lines=9)
  inputs = testing.hosts(testing.config('lines'), 3)

  # Its shuffling mixes epochs, so some examples come late.
  found = [testing.texts(data, testing.read(data, 60)) for data in inputs]

  assert sorted(sum(map(list, map(set, found)), [])) == sorted(
    testing.answers(18)
  )
  assert 'reads a part of the examples of every source' in log()


def test_each_epoch_has_each_example_once_and_a_new_order():
  params = testing.config('seven', deterministic_input=True)
  alone = testing.global_texts(testing.hosts(params, 1), 14)

  assert testing.global_texts(testing.hosts(params, 2), 7) == alone
  epochs = [alone[7 * epoch : 7 * epoch + 7] for epoch in range(4)]
  for epoch in epochs:
    assert sorted(epoch) == testing.answers(7)
  assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize(
  'fields',
  [
    {'deterministic_input': True},
    {'deterministic_input': True, 'mixture_name': 'both'},
    {'repeat': False, 'shuffle': True},
  ],
)
def test_other_numbers_of_hosts_continue_exactly(fields):
  params = testing.config('ten', batch_size=1, **fields)
  plan = [(2, 2), (4, 1), (1, 2)]
  if fields.get('repeat', True):  # Into other epochs.
    plan = [(2, 6), (4, 3), (1, 2)]
  count = sum(hosts * batches for hosts, batches in plan)
  expected = testing.global_texts(testing.hosts(params, 1), count)

  found, state = [], None
  for hosts, batches in plan:
    inputs = testing.hosts(params, hosts)
    assert inputs[0].state_fits_any_hosts
    if state:
      for data in inputs:
        data.set_state(state)
    found += testing.global_texts(inputs, batches)
    [state] = {data.get_state() for data in inputs}
    assert json.loads(state)['place'][-1] == len(found)

  assert found == expected


@pytest.mark.parametrize(('name', 'packs'), [('ten', False), ('both', True)])
def test_training_continues_exactly(name, packs):
  params = testing.config(
    name,
    task_feature_lengths={'inputs': 9, 'targets': 9},
    feature_converter=converters.LanguageModelFeatures(pack=packs),
    input_random_seed=7,
    num_infeed_hosts=2,
  )
  data, again = params.Instantiate(), params.Instantiate()
  testing.read(data, 3)
  data.peek_padded()
  again.set_state(data.get_state())

  for one, other in zip(
    [data.get_next_padded(), *testing.read(data, 4)],
    testing.read(again, 5),
    strict=True,
  ):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_states_of_others_are_refused():
  params = testing.config('ten')
  first, second = testing.hosts(params, 2)
  other = testing.config('seven', num_infeed_hosts=2).Instantiate()

  assert not first.state_fits_any_hosts
  with pytest.raises(errors.UserError, match='host and number of hosts'):
    second.set_state(first.get_state())
  with pytest.raises(errors.UserError, match='task and split'):
    other.set_state(first.get_state())
  with pytest.raises(errors.UserError, match="b'something' is not a state"):
    first.set_state(b'something')


def test_training_that_ends_ends_together():
  params = testing.config('seven', repeat=False, shuffle=False)

  inputs = testing.hosts(params, 3)

  assert testing.global_texts(inputs) == testing.answers(6)
  assert all(data.num_samples == 7 for data in inputs)


def test_batches_are_skipped_at_the_start():
  params = testing.config('ten', shuffle=False, num_batches_to_skip=2)

  for deterministic in (False, True):
    [data] = testing.hosts(
      params.clone().set(deterministic_input=deterministic), 1
    )
    found = testing.texts(data, testing.read(data, 4))
    assert found == [*testing.answers(10)[4:], 'a0', 'a1']


def test_without_a_state_a_new_shuffle_is_read(log):
  params = testing.config('ten')
  fresh, resumed = params.Instantiate(), params.Instantiate()

  resumed.resume_at(0)
  state = resumed.get_state()
  resumed.resume_at(3)

  assert state == fresh.get_state() != resumed.get_state()
  assert testing.texts(fresh, testing.read(fresh, 5)) != testing.texts(
    resumed, testing.read(resumed, 5)
  )
  assert 'at batch 3 it starts a new shuffle' in log()
  # And that goes on, too.
  fresh.set_state(resumed.get_state())
  assert testing.texts(fresh, testing.read(fresh, 5)) == testing.texts(
    resumed, testing.read(resumed, 5)
  )


def test_without_a_state_one_order_continues_at_the_step(log):
  params = testing.config('seven', deterministic_input=True)
  read, resumed = testing.hosts(params, 2)[1], testing.hosts(params, 2)[1]
  testing.read(read, 4)  # Into the third epoch.

  resumed.resume_at(4)

  assert testing.texts(read, testing.read(read, 3)) == testing.texts(
    resumed, testing.read(resumed, 3)
  )
  assert 'continues after 16 examples of its order' in log()


def test_training_has_neither_strings_nor_provenance():
  def convert(data, task_feature_lengths):
    del task_feature_lengths
    return data.map(
      lambda x: {'text': x['targets_pretokenized'], 'size': len(x['targets'])}
    )

  params = testing.config('ten', feature_converter=convert)
  evaluated = testing.eval_config('ten', feature_converter=convert)

  assert testing.read(params.Instantiate(), 1)[0].keys() == {
    'size',
    'eval_sample_weights',
  }
  [batch] = testing.read(evaluated.Instantiate(), 1)
  assert batch.text.tolist() == [b'a0', b'a1']
  assert evaluated.Instantiate().is_host_field('text', batch.text)


def test_a_mixture_has_its_rates_and_a_passed_feature():
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  for number, name in enumerate(('one', 'two')):
    testing.register(
      name,
      preprocessors=[
        lambda data, number=number: data.map(
          lambda x: {**x, 'origin': tf.constant([number])}
        ),
        seqio.preprocessors.tokenize,
      ],
    )
  spec = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
  data = testing.config(
    None,
    mixture_or_task=seqio.Mixture('mixed', [('one', 1.0), ('two', 3.0)]),
    task_feature_lengths={'inputs': 4, 'targets': 4, 'origin': 1},
    feature_converter=converters.LanguageModelFeatures(
      passthrough_features={'origin': spec}
    ),
    batch_size=400,
  ).Instantiate()

  [batch] = testing.read(data, 1)

  assert 0.7 < batch.origin.mean() < 0.8

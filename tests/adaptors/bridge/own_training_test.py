"""A user's own schedule and optimizer, inside of the step, against Lingvo."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from pax_compat import errors
from tests.adaptors.translate import lingvo_steps, tiny_task
from tests.adaptors.translate.training import sparse_rows_test

_NOT_PYTHON = 'Python code cannot run in a compiled model'


@pytest.fixture(scope='module')
def own():
  """A user's module."""
  return lingvo_runtime.module('tests.adaptors.bridge.own_training')


def _translate(params, translation='auto'):
  if translation == 'parts':
    return bridge_task.bridge_parts(params, 'tiny')
  return bridge_task.translate(params, 'tiny', translation)


def test_a_schedule_has_its_values(own):
  params = tiny_task.params(lr_schedule=own.Bump.Params())
  translated = _translate(params)
  assert translated.config.model.cls is not bridge_task.BridgedModel
  made = translated.config.train.learner.optimizer.lr_schedule.Instantiate()
  steps = [0, 1, 2, 3, 4, 10]
  np.testing.assert_allclose(
    [made.value_at(jnp.int32(step)) for step in steps],
    lingvo_steps.schedule_values(own.Bump.Params(), steps),
    rtol=1e-6,
  )
  [note] = [n for n in translated.notes if 'is bridged' in n]
  assert 'task.train.lr_schedule' in note and 'Bump' in note


@pytest.mark.slow
def test_a_schedule_within_another_trains_as_in_lingvo(own):
  params = tiny_task.params(
    lr_schedule=tiny_task.schedule(
      'CombinedMinimumSchedule',
      schedules=[own.Bump.Params(), tiny_task.schedule('Constant', value=0.9)],
    )
  )
  tiny_task.check(params, translated=_translate(params))


@pytest.mark.parametrize(
  'name',
  [
    'Scaled',
    *(
      pytest.param(n, marks=pytest.mark.slow)
      for n in ('Sign', 'Halved', 'Ftrl')
    ),
  ],
)
def test_an_optimizer_trains_as_in_lingvo(own, name):
  """With its slots; rows that a batch does not look up as in Lingvo."""
  params = tiny_task.params(
    optimizer=getattr(own, name).Params(),
    lr_schedule=own.Bump.Params(),
    l2_regularizer_weight=0.1,
  )
  translated = _translate(params)
  assert translated.config.model.cls is not bridge_task.BridgedModel
  sparse_rows_test.check(params, translated=translated)


def test_an_optimizer_within_an_accumulator(own):
  """Of one that reads the step, Lingvo counts skipped steps as well."""
  accumulator = tiny_task.optimizer('Accumulator', accum_steps=2)
  params = tiny_task.params(
    optimizer=accumulator.Set(optimizer_tpl=own.Sign.Params())
  )
  tiny_task.check(params, translated=_translate(params))
  params.train.optimizer.optimizer_tpl = own.ByStep.Params()
  with pytest.raises(errors.UserError, match='may count, the steps that Acc'):
    _translate(params)


@pytest.mark.slow
def test_an_optimizer_of_a_bridged_task(own):
  params = tiny_task.params(optimizer=own.Sign.Params())
  sparse_rows_test.check(params, translated=_translate(params, 'bridge'))


def test_a_table_that_nobody_knows_how_to_update(own):
  params = tiny_task.params(optimizer=own.Odd.Params())
  for translation in ('parts', 'bridge'):  # Before anything is traced.
    with pytest.raises(
      errors.UserError, match=r'the table emb/.* is unknown: no'
    ):
      _translate(params, translation)
  params.train.bprop_variable_exclusion = 'emb'
  _translate(params, 'parts')
  _translate(params, 'bridge')


@pytest.mark.parametrize(
  'field,name,message',
  [
    ('lr_schedule', 'OnTheHost', _NOT_PYTHON),
    ('optimizer', 'InPython', _NOT_PYTHON),
    ('optimizer', 'Loop', 'it overrides ApplyPostTrainingLoop'),
  ],
)
def test_what_cannot_be_bridged_says_what_to_do(own, field, name, message):
  params = tiny_task.params(**{field: getattr(own, name).Params()})
  for translation in ('auto', 'bridge', 'native'):
    with pytest.raises(errors.UserError) as error:
      _translate(params, translation)
    text = str(error.value)
    assert f'task.train.{field}' in text
    assert '@registry.translates(' in text and '--import_modules' in text
    assert translation == 'native' or message in text

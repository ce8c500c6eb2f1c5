"""Inputs whose data sources train different variables, against real Lingvo."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from tests.adaptors.translate import tiny_task
from tests.adaptors.translate.tiny_task import learner, optimizer

_EMB = 'emb.wm[0]'
_FILTERS = ['first|emb', 'second/b', '']


def _source(name, **fields):
  module = lingvo_runtime.module('lingvo.core.datasource')
  return getattr(module, name).Params().Set(**fields)


def _files(pattern='text:a', **fields):
  return _source('SimpleDataSource', file_pattern=pattern, **fields)


def _mixed(filters=_FILTERS, count=3):
  return _source(
    'CrossBatchMixingDataSource',
    sub=[_files() for _ in range(count)],
    weights=[1.0] * count,
    bprop_variable_filters=filters,
  )


def _params(source=None, pattern=None, **train):
  params = tiny_task.params(**train)
  params.input.file_datasource = source
  if pattern:
    params.input.file_pattern = pattern
  return params


def _batches(sources, count=3):
  data = tiny_task.batches([1.0, 3.0, 0.5, 2.0][: len(sources)])
  for batch, source in zip(data, sources, strict=True):
    rows = np.zeros([batch.ids.shape[0], count], np.float32)
    rows[:, source] = 1.0
    batch.source_selected = rows
  return data


@pytest.mark.parametrize('form', ['file_datasource', 'file_pattern'])
def test_three_sources(form):
  """Momentum, regularisation and clipping go by the gradients that are left."""
  given = dict(source=_mixed())
  if form == 'file_pattern':
    given = dict(pattern=[(f'text:{f}', 1.0, f) for f in _FILTERS])
  params = _params(
    **given,
    optimizer=optimizer('Adam', epsilon=1e-3),
    l2_regularizer_weight=0.1,
    clip_gradient_norm_to_value=0.25,
  )
  run = tiny_task.check(params, _batches([0, 1, 2, 1]))
  # No batch had trained it before the third one.
  before, after = (run.weights[i]['second.w'] for i in (2, 3))
  np.testing.assert_array_equal(before, run.weights[0]['second.w'])
  assert not np.array_equal(before, after)


def test_a_source_that_trains_nothing_of_a_learner():
  params = _params(
    source=_mixed(['second', 'emb', '']),
    learner=[
      learner(name='a', loss_name='loss', bprop_variable_filter='emb'),
      learner(
        name='b',
        loss_name='loss',
        bprop_variable_filter='second',
        optimizer=optimizer('Adam', epsilon=1e-3),
      ),
    ],
  )
  run = tiny_task.check(params, _batches([0, 1, 0]))
  np.testing.assert_array_equal(run.weights[0][_EMB], run.weights[1][_EMB])
  assert not np.array_equal(run.weights[1][_EMB], run.weights[2][_EMB])


def test_one_source():
  params = _params(_files(bprop_variable_filters=['first']))
  run = tiny_task.check(params, _batches([0, 0], count=1))
  moved = tiny_task.moved(run)
  assert moved['first.w'] and not moved[_EMB]


def _by_source(params):
  config = tiny_task.translate(params).config.train.learner
  return config.bprop_variable_inclusion_by_source


def test_what_it_becomes():
  assert _by_source(_params(_mixed())) == [
    ['params/emb/emb_var', 'params/first/bias/b', 'params/first/linear/w'],
    ['params/second/bias/b'],
    ['.*'],
  ]


@pytest.mark.parametrize(
  'source,pattern',
  [
    (lambda: _mixed(['', '', '']), None),
    (lambda: _mixed(None), None),
    (lambda: _files('text:a,text:b'), None),
    (None, [('text:a', 1.0, ''), ('text:b', 2.0)]),
    (None, ['text:a', 'text:b']),
  ],
)
def test_where_all_sources_train_everything(source, pattern):
  assert not _by_source(_params(source and source(), pattern))


def test_filters_of_inner_sources_have_no_effect():
  inner = _files(bprop_variable_filters=['emb'])
  source = _mixed(['', 'first'], count=2)
  source.sub[0] = _mixed(['emb', ''], count=2)
  source.sub[0].sub[1] = inner
  notes = '\n'.join(tiny_task.translate(_params(source)).notes)
  where = 'task.input.file_datasource'
  for path in ('sub[0]', 'sub[0].sub[1]'):
    assert f'{where}.{path}.bprop_variable_filters has no effect' in notes


@pytest.mark.parametrize(
  'source,pattern,message',
  [
    (
      lambda: _files('text:a,text:b', bprop_variable_filters=['emb', '']),
      None,
      '2 expressions for 1 sources',
    ),
    (lambda: _mixed(['emb']), None, '1 expressions for 3 sources'),
    (lambda: _mixed(['(', '', '']), None, 'is not a regular expression'),
  ],
)
def test_what_is_refused(source, pattern, message):
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(_params(source(), pattern))
  assert message in str(error.value)
  assert 'task.input.file_datasource.bprop_variable_filters' in str(error.value)


def test_filters_within_batches_are_refused():
  params = _params(pattern=[('text:a', 1.0, 'emb'), ('text:b', 1.0, '')])
  params.input.use_within_batch_mixing = True
  with pytest.raises(errors.UserError, match='Expected a list of pairs'):
    tiny_task.translate(params)


def test_an_input_with_a_way_of_its_own_is_refused():
  base = lingvo_runtime.module('lingvo.core.base_input_generator')

  class Own(base.BaseSequenceInputGenerator):
    """Says itself what its batches train."""

    def GetBpropVariableFilters(self):
      return ['emb']

  params = _params()
  params.input = Own.Params().Set(tokenizer=params.input.tokenizer)
  with pytest.raises(
    errors.UserError, match='overrides GetBpropVariableFilters'
  ):
    tiny_task.translate(params)

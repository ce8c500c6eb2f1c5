"""Several optimizers, learners or batches: whole steps of a tiny task."""

import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors, learners, optimizers
from tests.adaptors.translate import micro_batches, tiny_task
from tests.adaptors.translate.tiny_task import learner, optimizer, schedule

_EMB = 'emb.wm[0]'
_ADAM = {'epsilon': 1e-3}


def _issues(task_params) -> str:
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(task_params)
  return str(error.value)


def test_composite_optimizer():
  """Its rates do not know of the learner's."""
  tiny_task.check(
    tiny_task.params(
      optimizer=optimizer(
        'CompositeOptimizer',
        optimizer_map={
          '.*emb': (optimizer('Adagrad'), 0.3),
          'tiny/first/b': (optimizer('Momentum'), 0.2),
          '.*nothing': (optimizer('SGD'), 0.2),
          'default_optimizer': (optimizer('Adam', **_ADAM), 0.05),
        },
      ),
      learning_rate=7.0,
      clip_gradient_norm_to_value=0.25,
      l2_regularizer_weight=0.1,
    )
  )


def test_accumulated_gradients():
  """Those of each batch are clipped, so the table's are no longer sparse."""
  tiny_task.check(
    tiny_task.params(
      optimizer=optimizer(
        'Accumulator', optimizer_tpl=optimizer('Momentum'), accum_steps=2
      ),
      clip_gradient_norm_to_value=0.25,
    )
  )


def test_gradients_accumulated_by_weight():
  """Batches weigh 1, 3, 0.5 and 2; each second one makes an update."""
  run = tiny_task.check(
    tiny_task.params(
      optimizer=optimizer(
        'DynamicAccumulator',
        optimizer_tpl=optimizer('Adam', **_ADAM),
        min_accum_weight=2.5,
      ),
      clip_gradient_norm_to_value=0.25,
      lr_schedule=schedule('LinearSchedule', start=(0, 1.0), limit=(2, 0.5)),
    )
  )
  assert not np.array_equal(run.weights[1][_EMB], run.weights[2][_EMB])
  for one, other in ((0, 1), (2, 3)):
    assert np.array_equal(run.weights[one][_EMB], run.weights[other][_EMB])


def test_a_grafted_optimizer():
  tiny_task.check(
    tiny_task.params(
      optimizer=_graft(),
      bprop_variable_exclusion='emb',
      l2_regularizer_weight=0.1,
    )
  )


def _graft():
  return optimizer(
    'AdaGraft',
    magnitude_optimizer=optimizer('Adagrad').Instantiate(),
    direction_optimizer=optimizer('Adam', **_ADAM).Instantiate(),
  )


@pytest.fixture
def sharded_adam():
  """Params of an optimizer of two batches."""
  with micro_batches.sharded_adam() as params:
    yield params


def test_micro_batches(sharded_adam):
  """The rate is constant: in Lingvo it is a race which step it is asked at."""
  params = tiny_task.params(optimizer=sharded_adam)
  data = tiny_task.batches([1.0, 2.0, 0.5, 1.0])
  run = tiny_task.check(params, data)
  assert np.array_equal(run.weights[0][_EMB], run.weights[1][_EMB])
  assert not np.array_equal(run.weights[1][_EMB], run.weights[2][_EMB])


@pytest.mark.parametrize(
  'defer,steps,num_train_steps,save_interval_steps',
  # An update is a step for Lingvo, and so is each batch unless that is off.
  [(False, [1, 4, 7], 20, 4), (True, [0, 1, 2], 60, 10)],
)
def test_steps_of_micro_batches(
  sharded_adam, defer, steps, num_train_steps, save_interval_steps
):
  params = tiny_task.params(
    optimizer=sharded_adam,
    lr_schedule=schedule('LinearSchedule', start=(0, 0.0), limit=(99, 99.0)),
    max_steps=30,
    save_interval_steps=5,
  ).Set(defer_global_step_update=defer)
  train = tiny_task.translate(params).config.train
  made = train.learner.optimizer.lr_schedule.Instantiate()
  values = [made.value_at(jnp.int32(update)) for update in range(3)]
  np.testing.assert_allclose(values, steps, rtol=1e-6)
  assert train.num_train_steps == num_train_steps
  assert train.save_interval_steps == save_interval_steps


def test_the_new_form():
  given = learner(
    name='other',
    loss_name='twice',
    optimizer=optimizer('Adagrad'),
    learning_rate=0.3,
    clip_gradient_norm_to_value=0.5,
    l2_regularizer_weight=0.1,
    bprop_variable_filter='first|emb',
  )
  # The fields of the old form then have no effect.
  params = tiny_task.params(
    learner=given, learning_rate=0.7, bprop_variable_filter='second'
  )
  run = tiny_task.check(params)
  assert not tiny_task.moved(run)['second.w']
  translated = tiny_task.translate(params)
  assert translated.config.train.learner.loss_name == 'twice'
  assert any('train.learning_rate = 0.7' in note for note in translated.notes)


def test_several_learners_of_one_loss():
  """Each clips the gradients of its own variables; none trains the rest."""
  run = tiny_task.check(
    tiny_task.params(
      learner=[
        learner(
          name='layers',
          loss_name='loss',
          bprop_variable_filter='first',
          clip_gradient_norm_to_value=0.05,
        ),
        learner(
          name='table',
          loss_name='loss',
          bprop_variable_filter='emb',
          optimizer=optimizer('Adam', **_ADAM),
          clip_gradient_norm_to_value=0.01,
          lr_schedule=schedule('SqrtDecay', warmup_steps=2),
        ),
      ]
    )
  )
  assert tiny_task.moved(run)[_EMB] and not tiny_task.moved(run)['second.w']


def test_the_only_learner_of_a_list():
  config = tiny_task.translate(
    tiny_task.params(learner=[learner(optimizer=optimizer('Adam'))])
  ).config.train.learner
  made = config.Instantiate()
  assert type(made) is learners.Learner
  assert isinstance(made.optimizer, optimizers.Adam)


def _piecewise():
  parts = [schedule('Constant'), schedule('Constant', value=0.5)]
  return schedule('PiecewiseSchedule', boundaries=[2], schedules=parts)


def _composite(**sub):
  return optimizer('CompositeOptimizer', optimizer_map=sub)


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'optimizer': lambda: _composite(first=(optimizer('SGD'), 1.0))},
      "no usable optimizer 'default_optimizer'",
    ),
    (
      {
        'optimizer': lambda: _composite(
          **{'.*first': (optimizer('SGD'), 1.0)},
          **{'.*first/b': (optimizer('SGD'), 1.0)},
          default_optimizer=(optimizer('SGD'), 1.0),
        )
      },
      'another expression matches first/bias/b too',
    ),
    (
      {
        'optimizer': lambda: _composite(
          default_optimizer=(
            optimizer('Accumulator', optimizer_tpl=optimizer('SGD')),
            1.0,
          ),
        )
      },
      'Accumulator is not translated here',
    ),
    (
      {
        'optimizer': lambda: _composite(
          default_optimizer=(optimizer('DistributedShampoo'), 1.0),
        )
      },
      'DistributedShampoo is not translated here',
    ),
    (
      {
        'optimizer': lambda: optimizer(
          'DynamicAccumulator', min_accum_weight=2
        ),
        'lr_schedule': lambda: schedule(
          'CombinedMinimumSchedule', schedules=[_piecewise()]
        ),
      },
      'PiecewiseSchedule is not translated with a DynamicAccumulator',
    ),
    (
      {
        'optimizer': lambda: optimizer(
          'XLAShardingAdafactorAccuGrad', num_micro_batches=4
        )
      },
      'defer_global_step_update = True',
    ),
    (
      {'learner': lambda: learner(loss_name=['loss', 'twice'])},
      'several losses',
    ),
    (
      {'learner': lambda: learner(skip_zero_gradients='weight')},
      'train.learner.skip_zero_gradients',
    ),
    (
      {'learner': lambda: [learner(), learner(name='b', loss_name='loss')]},
      'another learner trains',
    ),
  ],
)
def test_what_is_refused_by_class_or_together(fields, message):
  made = {name: make() for name, make in fields.items()}
  assert message in _issues(tiny_task.params(**made))


def test_a_step_count_that_never_grows_is_refused():
  params = tiny_task.params().Set(defer_global_step_update=True)
  assert 'task.defer_global_step_update' in _issues(params)

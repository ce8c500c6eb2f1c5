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
  """Classes as a user writes them, in a namespace."""
  tf = lingvo_runtime.module('lingvo.compat')
  schedule = lingvo_runtime.module('lingvo.core.schedule')
  optimizer = lingvo_runtime.module('lingvo.core.optimizer')
  plain = lingvo_runtime.module('tensorflow')
  raw = plain.raw_ops

  class Bump(schedule.BaseSchedule):
    """Rises and falls again."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('peak', 3, 'The step of the peak.')
      return p

    def Value(self, step=None):
      x = tf.cast(self.GetStep(step), tf.float32) / self.params.peak
      return tf.where(x < 1.0, 0.1 + x, tf.exp(1.0 - x))

  class OnTheHost(schedule.BaseSchedule):
    """Computes in Python."""

    def Value(self, step=None):
      return plain.py_function(lambda s: s * 0.5, [self.GetStep(step)], 'float')

  class SignOptimizer(tf.train.Optimizer):
    """Takes the sign of a momentum, and shrinks weights."""

    def __init__(self, lr, decay):
      super().__init__(False, 'Sign')
      self._lr, self._decay = lr, decay

    def _create_slots(self, var_list):
      for v in var_list:
        self._zeros_slot(v, 'm', self._name)
      self._create_non_slot_variable(1.0, 'power', var_list[0])

    def _prepare(self):
      lr = self._call_if_callable(self._lr)
      self._lr_tensor = plain.convert_to_tensor(lr)

    def _power(self):
      graph = plain.compat.v1.get_default_graph
      with plain.init_scope():
        where = None if plain.executing_eagerly() else graph()
      return self._get_non_slot_variable('power', graph=where)

    def _resource_apply_dense(self, grad, var):
      m = self.get_slot(var, 'm')
      moved = m.assign(self._decay * m + (1.0 - self._decay) * grad)
      step = tf.sign(moved) * self._lr_tensor * self._power()
      return var.assign_sub(step + 0.01 * var)

    def _resource_apply_sparse(self, grad, var, indices):
      m = self.get_slot(var, 'm')
      moved = self._decay * tf.gather(m, indices) + (1.0 - self._decay) * grad
      step = tf.sign(moved) * self._lr_tensor * self._power()
      step += 0.01 * tf.gather(var, indices)
      return tf.group(
        raw.ResourceScatterUpdate(
          resource=m.handle, indices=indices, updates=moved
        ),
        raw.ResourceScatterSub(
          resource=var.handle, indices=indices, updates=step
        ),
      )

    def _finish(self, update_ops, name_scope):
      with tf.control_dependencies(update_ops):
        power = self._power()
        return tf.group(power.assign(power * 0.9), *update_ops)

  class Sign(optimizer.Base):
    """That optimizer in Lingvo."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('decay', 0.8, 'Of the momentum.')
      return p

    def GetOptimizer(self, lr):
      return SignOptimizer(lr, self.params.decay)

  class Ftrl(optimizer.Base):
    """One of TensorFlow's that Lingvo does not have."""

    def GetOptimizer(self, lr):
      made = plain.compat.v1.train.FtrlOptimizer
      return made(lr, l1_regularization_strength=0.01)

  class Halved(optimizer.Momentum):
    """Changes gradients."""

    def Apply(self, lr, var_grad, weight=None):
      halves = var_grad.Transform(
        lambda pair: type(pair)(
          pair.var,
          plain.IndexedSlices(0.5 * pair.grad.values, pair.grad.indices)
          if isinstance(pair.grad, plain.IndexedSlices)
          else 0.5 * pair.grad,
        )
      )
      return super().Apply(lr, halves, weight)

  class Odd(optimizer.Base):
    """Updates every second row of a table only."""

    def Apply(self, lr, var_grad, weight=None):
      def updated(v, g):
        if not isinstance(g, plain.IndexedSlices):
          return v.assign_sub(0.1 * g)
        even = tf.cast(g.indices % 2 == 0, tf.float32)[:, tf.newaxis]
        return raw.ResourceScatterSub(
          resource=v.handle, indices=g.indices, updates=even * g.values
        )

      return tf.group(*(updated(v, g) for v, g in var_grad.Flatten()))

  class InPython(optimizer.Base):
    """Computes on the host."""

    def Apply(self, lr, var_grad, weight=None):
      return tf.group(
        *(
          v.assign_sub(plain.py_function(lambda x: x, [g], 'float'))
          for v, g in var_grad.Flatten()
        )
      )

  class Loop(optimizer.SGD):
    """Does something after each loop of a TPU."""

    def ApplyPostTrainingLoop(self):
      return tf.no_op()

  found = dict(locals())
  return type('own', (), {k: v for k, v in found.items() if k[0].isupper()})


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
    'Sign',
    *(pytest.param(n, marks=pytest.mark.slow) for n in ('Halved', 'Ftrl')),
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


@pytest.mark.slow
def test_an_optimizer_of_a_bridged_task(own):
  params = tiny_task.params(optimizer=own.Sign.Params())
  sparse_rows_test.check(params, translated=_translate(params, 'bridge'))


def test_a_table_that_nobody_knows_how_to_update(own):
  params = tiny_task.params(optimizer=own.Odd.Params())
  with pytest.raises(
    errors.UserError, match=r'the table emb/.* is unknown: no'
  ):
    _translate(params, 'parts')
  params.train.bprop_variable_exclusion = 'emb'
  _translate(params, 'parts')


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

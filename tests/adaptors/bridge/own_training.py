"""Schedules and optimizers as users write them."""

import lingvo.compat as tf
import tensorflow
from lingvo.core import optimizer, py_utils, schedule

raw = tensorflow.raw_ops


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
    return tensorflow.py_function(
      lambda s: s * 0.5, [self.GetStep(step)], 'float'
    )


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
    self._lr_tensor = tensorflow.convert_to_tensor(lr)

  def _power(self):
    graph = tensorflow.compat.v1.get_default_graph
    with tensorflow.init_scope():
      where = None if tensorflow.executing_eagerly() else graph()
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


class Scaled(Sign):
  """Computes with the learning rate, before and after it is passed on."""

  def Apply(self, lr, var_grad, weight=None):
    return super().Apply(tf.minimum(0.5 * lr, 0.4), var_grad, weight)

  def GetOptimizer(self, lr):
    return SignOptimizer(2.0 * lr - 0.01, self.params.decay)


class Ftrl(optimizer.Base):
  """One of TensorFlow's that Lingvo does not have."""

  def GetOptimizer(self, lr):
    made = tensorflow.compat.v1.train.FtrlOptimizer
    return made(lr, l1_regularization_strength=0.01)


class Halved(optimizer.Momentum):
  """Changes gradients."""

  def Apply(self, lr, var_grad, weight=None):
    halves = var_grad.Transform(
      lambda pair: type(pair)(
        pair.var,
        tensorflow.IndexedSlices(0.5 * pair.grad.values, pair.grad.indices)
        if isinstance(pair.grad, tensorflow.IndexedSlices)
        else 0.5 * pair.grad,
      )
    )
    return super().Apply(lr, halves, weight)


class ByStep(optimizer.SGD):
  """Takes smaller and smaller steps."""

  def Apply(self, lr, var_grad, weight=None):
    step = tf.cast(py_utils.GetGlobalStep(), tf.float32)
    return super().Apply(lr / (step + 1.0), var_grad, weight)


class Odd(optimizer.Base):
  """Updates every second row of a table only."""

  def Apply(self, lr, var_grad, weight=None):
    def updated(v, g):
      if not isinstance(g, tensorflow.IndexedSlices):
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
        v.assign_sub(tensorflow.py_function(lambda x: x, [g], 'float'))
        for v, g in var_grad.Flatten()
      )
    )


class Loop(optimizer.SGD):
  """Does something after each loop of a TPU."""

  def ApplyPostTrainingLoop(self):
    return tf.no_op()

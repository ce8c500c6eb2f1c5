"""Experiments of a user: with own randomness, or that Lingvo cannot run."""

import os
import signal

import lingvo.compat as tf
from lingvo import model_registry
from lingvo.core import (
  base_input_generator,
  base_model,
  base_model_params,
  py_utils,
)

DIMS = 3


class Points(base_input_generator.BaseInputGenerator):
  """Random vectors [B, D], and a string for each."""

  def _InputBatch(self):
    rows = self.InfeedBatchSize()
    return py_utils.NestedMap(
      x=tf.random.uniform([rows, DIMS]), key=tf.fill([rows], 'a point')
    )


class ZoneoutTask(base_model.BaseTask):
  """Keeps some units, drawn at random, and adds noise."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define('zoneout_prob', 0.5, 'Probability that a unit is kept.')
    return p

  def _CreateLayerVariables(self):
    super()._CreateLayerVariables()
    self.CreateVariable(
      'w',
      py_utils.WeightParams([DIMS, DIMS], py_utils.WeightInit.Gaussian(1.0)),
    )

  def FPropTower(self, theta, batch):
    h = tf.matmul(batch.x, theta.w)
    is_kept = tf.random.uniform(tf.shape(h)) < self.params.zoneout_prob
    h = tf.where(is_kept, batch.x, h)
    seeds = py_utils.GenerateStepSeedPair(self.params)
    h += 0.1 * tf.random.stateless_normal(tf.shape(h), seeds)
    return {'loss': (tf.reduce_mean(tf.square(h)), 1.0)}, {}


class AbortingTask(ZoneoutTask):
  """Ends the process, as a corrupt heap does."""

  def FPropTower(self, theta, batch):
    if not py_utils.IsEagerMode():
      os.kill(os.getpid(), signal.SIGABRT)
    return super().FPropTower(theta, batch)


@model_registry.RegisterSingleTaskModel
class Zoneout(base_model_params.SingleTaskModelParams):
  """Has randomness of its own."""

  TASK = ZoneoutTask

  def Train(self):
    return Points.Params().Set(name='points', batch_size=4)

  def Task(self):
    p = self.TASK.Params().Set(name='zoneout')
    p.train.learning_rate = 0.1
    return p


@model_registry.RegisterSingleTaskModel
class Aborting(Zoneout):
  """Ends the process."""

  TASK = AbortingTask

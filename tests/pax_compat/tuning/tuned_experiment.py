"""Experiments whose class attributes are searched."""

from pax_compat import experiment_registry
from pax_compat.tuning import automl
from tests.pax_compat import counting_experiment


class _Tuned(counting_experiment.Counting):
  """Counts, with a learning rate; one of its batches may be held back."""

  LEARNING_RATE = 0.01
  WAIT_AT = 0
  WAIT_FOR = ''

  def task(self):
    task = super().task()
    task.train.learner.optimizer.learning_rate = self.LEARNING_RATE
    return task

  def datasets(self):
    train, dev = super().datasets()
    return [train.set(wait_at=self.WAIT_AT, wait_for=self.WAIT_FOR), dev]


@experiment_registry.register
@automl.parameter_sweep(
  [('LEARNING_RATE', 'WAIT_AT'), (0.01, 9), (1e-7, 0)],
  metric=automl.Metric.eval('loss', 'dev'),
  goal='minimize',
)
class Swept(_Tuned):
  """Two trials, of which the first one can be held back."""


@experiment_registry.register
class Searched(_Tuned):
  """Says how it is searched."""

  def search(self):
    return automl.SearchHParams(
      search_algorithm=automl.RandomSearch.config(seed=7),
      search_reward=automl.SingleObjective.config(
        metric=automl.Metric.eval('loss', 'dev'), goal='minimize'
      ),
      early_stopping=automl.EarlyStoppingByValue.config(
        step_values=[(5, -2.0), (10, -1.5)]
      ),
      cross_step_metric_aggregator=automl.MetricsWithMinValue.config(),
      max_num_trials=5,
    )


@experiment_registry.register
class Scaled(_Tuned):
  """Each trial trains with two learning rates, and counts the sum of losses."""

  def sub_experiments(self):
    def scaled(factor):
      class Scaled(type(self)):
        LEARNING_RATE = self.LEARNING_RATE * factor

      return Scaled

    return {f'{factor}x': scaled(factor) for factor in (1, 2)}

  def search(self):
    metric = automl.Metric.eval(
      'loss', 'dev', aggregator=automl.MetricAggregator.SUM
    )
    return automl.hyperparameter_tuning(metric, goal='minimize')

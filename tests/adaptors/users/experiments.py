"""Experiments as users write them, by name.

Each function makes one: Params of Lingvo, as a registered class has them.
"""

import dataclasses
import inspect
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from lingvo.core import (
  base_input_generator,
  base_model,
  base_model_params,
  early_stop,
  hyperparams,
  layers_with_attention,
  learner,
  optimizer,
  program,
  rnn_cell,
  schedule,
)
from lingvo.tasks.lm import layers as lm_layers
from lingvo.tasks.lm import model as lm_model

from adaptors.lingvo_parity import synthetic
from lm_tasks.lingvo_params import python_docs
from tests.adaptors.users import tasks

_ROWS, _TIME = 3, 5


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment with batches.

  Attributes:
    registered: an instance of the class that a user registers.
    batches: by dotted name; None to read them from its own input.
    is_random: whether its steps draw numbers, which Lingvo draws otherwise.
    evaluates: the name of a dataset that is evaluated, too.
  """

  registered: Any
  batches: Sequence[dict[str, np.ndarray]] | None
  is_random: bool = False
  evaluates: str = ''


def batch(seed: int) -> dict[str, np.ndarray]:
  """Returns a batch for the tasks of `tasks`."""
  rng = np.random.default_rng(seed)

  def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)

  lengths = rng.integers(3, _TIME + 1, [_ROWS, 1])
  return {
    'x': floats(_ROWS, tasks.DIMS),
    'ids': rng.integers(0, tasks.IDS - 2, [_ROWS, _TIME]).astype(np.int32),
    'frames': floats(_ROWS, _TIME, tasks.DIMS),
    'paddings': (np.arange(_TIME) >= lengths).astype(np.float32),
    'targets': floats(_ROWS, tasks.CLASSES),
  }


_FIXED = (batch(0), batch(1))


def make(
  task: Any,
  train_input: Any = None,
  *,
  dev: Any = None,
  base: type = base_model_params.SingleTaskModelParams,
  model: type | None = None,
  batches: Any = _FIXED,
  **about,
) -> Experiment:
  """Returns the experiment of a task.

  Args:
    task: its Params.
    train_input: Params of the training data; None for none that is read.
    dev: Params of held-out data.
    base: of the registered class.
    model: the class of the model; None for Lingvo's.
    batches: see `Experiment`.
    **about: further attributes.
  """
  given = train_input
  if given is None:
    given = base_input_generator.BaseSequenceInputGenerator.Params()

  class Registered(base):
    """What a user writes."""

    def Train(self):
      return given.Copy()

    def Task(self):
      return task.Copy()

    def ProgramSchedule(self):
      return program.SimpleProgramScheduleForTask(
        train_dataset_name='Train',
        train_steps_per_loop=10,
        eval_dataset_names=[],
        eval_steps_per_loop=0,
        decode_steps_per_loop=0,
      )

  if dev is not None:
    Registered.Dev = lambda self: dev.Copy()
  if model is not None:
    Registered.Model = lambda self: model.Params(self.Task())
  return Experiment(Registered(), batches, **about)


def trained(params: Any, **train) -> Any:
  """Returns Params of a task with settings of its training."""
  params.train.Set(
    learning_rate=0.1,
    optimizer=optimizer.SGD.Params(),
    lr_schedule=schedule.Constant.Params(),
  )
  params.train.Set(**train)
  return params


def scores(cls=tasks.Scores, *, hidden=None, train=None, **fields):
  """Returns the experiment of a task that scores rows."""
  params = cls.Params().Set(**fields)
  if hidden is not None:
    params.hidden = hidden
  return make(trained(params, **(train or {})))


def _optimizer(params, cls=tasks.Scores, **train):
  return scores(cls, train={'optimizer': params, **train})


# Optimizers.


def adam_of_ones_own_numbers():
  return _optimizer(optimizer.Adam.Params().Set(beta1=0.7, epsilon=1e-3))


def adagrad():
  params = optimizer.Adagrad.Params().Set(initial_accumulator_value=0.2)
  return _optimizer(params)


def rmsprop():
  return _optimizer(optimizer.RMSProp.Params().Set(momentum=0.4, decay=0.8))


def momentum():
  params = optimizer.Momentum.Params().Set(alpha=0.8, use_nesterov=True)
  return _optimizer(params)


def adafactor():
  params = optimizer.XLAShardingAdafactor.Params().Set(
    beta1=0.0, multiply_by_parameter_scale=False, clipping_threshold=1.0
  )
  return _optimizer(params)


def several_optimizers():
  optimizers = {
    '.*hidden.*': (optimizer.Adam.ParamsB(), 0.02),
    'default_optimizer': (optimizer.SGD.Params(), 0.1),
  }
  return _optimizer(
    optimizer.CompositeOptimizer.Params().Set(optimizer_map=optimizers)
  )


def accumulated_gradients():
  params = optimizer.Accumulator.Params().Set(
    accum_steps=2, optimizer_tpl=optimizer.SGD.Params()
  )
  return _optimizer(params)


def adam_of_a_table():
  return _optimizer(optimizer.Adam.Params(), tasks.WordScores)


def momentum_of_a_table():
  return _optimizer(optimizer.Momentum.Params(), tasks.WordScores)


def own_optimizer():
  return _optimizer(tasks.Carefully.Params())


def own_update_rule():
  return _optimizer(tasks.Signed.Params())


# Schedules.


def _schedule(params):
  return scores(train={'lr_schedule': params})


def ramp_and_cosine():
  params = schedule.LinearRampupCosineSchedule.Params()
  return _schedule(params.Set(warmup_steps=1, total_steps=4, initial_value=2.0))


def pieces():
  params = schedule.PiecewiseConstantSchedule.Params()
  return _schedule(params.Set(boundaries=[1], values=[1.0, 0.25]))


def the_lower_of_two():
  params = schedule.CombinedMinimumSchedule.Params().Set(
    schedules=[
      schedule.LinearSchedule.Params().Set(start=(0, 0.5), limit=(4, 2.0)),
      schedule.ExponentialSchedule.Params().Set(start=(0, 1.0), limit=(4, 0.1)),
    ]
  )
  return _schedule(params)


def a_cycle():
  params = schedule.CycleSchedule.Params().Set(
    schedules=[schedule.Constant.Params().Set(value=v) for v in (1.0, 0.3)],
    steps=[1, 1],
  )
  return _schedule(params)


def own_schedule():
  return _schedule(tasks.Sawtooth.Params())


def schedule_by_the_dev_set():
  history = early_stop.MetricHistory.Params().Set(
    jobname='eval_dev', metric='loss'
  )
  params = schedule.DevBasedSchedule.Params().Set(metric_history=history)
  task = trained(tasks.Scores.Params(), lr_schedule=params)
  return make(
    task, dev=base_input_generator.BaseSequenceInputGenerator.Params()
  )


# Learners.


def _learner(name, **fields):
  params = learner.Learner.Params().Set(
    name=name,
    learning_rate=0.1,
    optimizer=optimizer.SGD.Params(),
    lr_schedule=schedule.Constant.Params(),
  )
  return params.Set(**fields)


def two_learners():
  first = _learner('loss', bprop_variable_filter='hidden')
  other = _learner(
    'loss_of_the_rest', bprop_variable_exclusion='hidden', learning_rate=0.3
  )
  other.loss_name = 'loss'
  return scores(train={'learner': [first, other]})


def frozen_layer():
  return scores(train={'bprop_variable_exclusion': 'hidden'})


def clipped_norm():
  return scores(train={'clip_gradient_norm_to_value': 0.1})


def l2():
  return scores(train={'l2_regularizer_weight': 0.1})


def l1_and_l2():
  weights = {'l1_regularizer_weight': 0.01, 'l2_regularizer_weight': 0.1}
  return scores(train=weights)


def averages():
  return scores(train={'ema_decay': 0.9})


def averages_with_batch_norm():
  return scores(tasks.Convolving, train={'ema_decay': 0.9})


def losses_of_two_learners():
  first = _learner('loss', bprop_variable_filter='hidden')
  other = _learner('second', bprop_variable_exclusion='hidden')
  return scores(tasks.TwoLosses, train={'learner': [first, other]})


# Cells and layers.


def _cell(params, *, normalized=False, train=None):
  params.Set(
    name='cell', num_input_nodes=tasks.DIMS, num_output_nodes=tasks.DIMS
  )
  return scores(
    tasks.SequenceScores, cell=params, normalized=normalized, train=train
  )


def own_cell():
  return _cell(tasks.OwnCell.Params(), normalized=True)


def gru():
  return _cell(rnn_cell.GRUCell.Params().Set(num_hidden_nodes=0))


def sru():
  return _cell(rnn_cell.SRUCell.Params())


def convolution():
  return scores(tasks.Convolving)


def own_layer():
  return scores(hidden=tasks.Bend.Params())


def counting_layer():
  return scores(hidden=tasks.Counting.Params())


def noisy_layer():
  made = scores(hidden=tasks.Noisy.Params())
  return dataclasses.replace(made, is_random=True)


def looping_layer():
  return scores(hidden=tasks.Looping.Params())


def unknown_activation():
  return scores(hidden=tasks.dense(tasks.DIMS, tasks.HIDDEN, 'SIGMOYD'))


# Tasks and metrics.


def strings():
  return scores(tasks.Spelling)


def own_tower():
  return scores(tasks.OwnTower)


def own_backward_pass():
  return scores(tasks.OwnBProp)


def updates_after_the_step():
  return scores(tasks.Averaging)


def own_metrics():
  return scores(tasks.Precise)


def results_on_the_host():
  return scores(tasks.Reporting)


def own_model_class():
  return make(trained(tasks.Scores.Params()), model=tasks.OwnModel)


# Native models.


class _Small(python_docs.TransformerLmTiny):
  """A decoder of one small layer."""

  MODEL_DIM, HIDDEN_DIM, NUM_HEADS, NUM_LAYERS = 8, 16, 2, 1


def _language_model(change):
  experiment = _Small()
  params = experiment.Task()
  change(params)
  return _with_made_up_batches(params, experiment.Train())


def _with_made_up_batches(params, train_input):
  fed = params.Copy().Set(input=train_input)
  batches = [synthetic.batch(fed, _ROWS, _TIME, seed=i) for i in (0, 1)]
  return make(params, train_input, batches=batches)


def small_transformer():
  def change(p):
    p.lm.trans_tpl.tr_fflayer_tpl.activation = 'SWISH'
    p.lm.trans_tpl.tr_atten_tpl.num_attention_heads = 2
    p.train.optimizer = optimizer.Adagrad.Params()

  return _language_model(change)


def transformer_of_own_layers():
  class Louder(layers_with_attention.TransformerFeedForwardLayer):
    """Computes something else than its parent."""

    def FProp(self, theta, inputs, paddings):
      return 1.5 * super().FProp(theta, inputs, paddings)

  def change(p):
    old = p.lm.trans_tpl.tr_fflayer_tpl
    p.lm.trans_tpl.tr_fflayer_tpl = Louder.Params().Set(
      hidden_dim=old.hidden_dim
    )
    p.train.optimizer = optimizer.Adagrad.Params()

  return _language_model(change)


def recurrent_model():
  params = lm_model.LanguageModel.Params().Set(name='lm')
  params.lm = lm_layers.RnnLm.CommonParams(
    vocab_size=76, emb_dim=8, num_layers=1, rnn_dims=8, rnn_hidden_dims=8
  )
  params.train.Set(learning_rate=0.1, lr_schedule=schedule.Constant.Params())
  params.train.optimizer = optimizer.Adagrad.Params()
  return _with_made_up_batches(params, _Small().Train())


# Inputs.


def _of(params, *, dev=None, train=None, **about):
  return make(
    trained(tasks.Scores.Params(), **(train or {})),
    params,
    dev=dev,
    batches=None,
    **about,
  )


def made_up_input():
  return _of(tasks.NumbersInput.Params().Set(batch_size=4))


def _lines(folder: pathlib.Path, name: str, lengths) -> str:
  path = folder / name
  lines = [' '.join(['0.5'] * n) for n in lengths]
  path.write_text(''.join(f'{line}\n' for line in lines))
  return f'text:{path}'


def _lines_params(pattern):
  return tasks.LinesInput.Params().Set(
    file_pattern=pattern,
    file_parallelism=1,
    file_buffer_size=8,
    bucket_upper_bound=[10],
    bucket_batch_limit=[2],
  )


def lines_without_buckets(folder: pathlib.Path):
  return _of(_lines_params(_lines(folder, 'a.txt', range(1, 40))))


def mixture_of_files(folder: pathlib.Path):
  patterns = [_lines(folder, f'{name}.txt', [3, 3, 3, 3]) for name in 'ab']
  params = _lines_params([(patterns[0], 0.7), (patterns[1], 0.3)])
  return _of(params.Set(use_within_batch_mixing=True))


def endless_evaluation():
  params = base_input_generator.BaseInputGenerator.Params().Set(
    file_datasource=tasks.NumbersSource.Params(), batch_size=4
  )
  return _of(params, dev=params.Copy(), evaluates='Dev')


# Several tasks.


def _several(**params):
  class Registered(base_model_params.MultiTaskModelParams):
    """Two tasks in turns."""

    def Train(self):
      inputs = hyperparams.Params()
      for name, one in params.items():
        inputs.Define(name, one.registered.Train(), '')
      return inputs

    def Model(self):
      p = base_model.MultiTaskModel.Params().Set(name='several')
      for name, one in params.items():
        p.task_params.Define(name, one.registered.Task(), '')
        p.task_probs.Define(name, 1.0 / len(params), '')
      return p

  return Experiment(Registered(), None)


def two_tasks():
  return _several(one=small_transformer(), other=recurrent_model())


def tasks_of_ones_own():
  return _several(one=small_transformer(), other=scores())


def by_name(name: str, folder: pathlib.Path) -> Experiment:
  """Returns the experiment of a name; it may write files to a folder."""
  function = globals()[name]
  needs_folder = bool(inspect.signature(function).parameters)
  return function(folder) if needs_folder else function()


def names() -> list[str]:
  """Returns the names of all experiments."""
  return [
    name
    for name, value in globals().items()
    if inspect.isfunction(value)
    and value.__module__ == __name__
    and not name.startswith('_')
    and name not in ('batch', 'make', 'trained', 'scores', 'by_name', 'names')
  ]

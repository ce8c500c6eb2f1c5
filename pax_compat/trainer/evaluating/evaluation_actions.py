"""When a task is evaluated and decoded while it is trained."""

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from pax_compat import base_input, errors
from pax_compat.metrics import metric_writers
from pax_compat.metrics import progress as progress_lib
from pax_compat.trainer import profiling, program, stopping
from pax_compat.trainer.actions import Moment
from pax_compat.trainer.evaluating import decoding, evaluation
from pax_compat.trainer.feeding import prefetching

# What a line for the user says of an evaluation, where it is known.
_TOLD = ('loss', 'log_pplx', 'fraction_of_correct_next_step_preds', 'accuracy')

# How many metrics such a line has of a decoding.
_MAX_TOLD = 4

# What stands for the next training batch among the eval datasets.
_NEXT = 'train'


class _Measure:
  """What evaluations and decodings have in common."""

  def __init__(
    self,
    *,
    task_program: program.TaskProgram,
    put: Callable,
    folder: pathlib.Path,
    writer: metric_writers.MetricWriter,
    progress: progress_lib.Progress,
    before: Callable[[], None],
    stop: stopping.Stop,
    say: Callable[[str], None],
  ):
    """Sets it up.

    Args:
      task_program: has the steps.
      put: sends a batch to the devices.
      folder: of the run.
      writer: takes what was measured.
      progress: is told of the pause.
      before: is called before anything is measured.
      stop: tells between batches whether the run is to stop.
      say: takes the lines that the user reads.
    """
    self._program = task_program
    self._put = put
    self._folder = folder
    self._writer = writer
    self._progress = progress
    self._before = before
    self._stop = stop
    self._say = say

  def __call__(self, moment: Moment):
    datasets = self._due(moment)
    if not datasets:
      return
    self._before()
    try:
      if moment.is_stopping:
        raise stopping.Interrupted
      for name in datasets:
        self._measure(name, moment)
    except stopping.Interrupted:  # A run that continues makes up for it.
      moment.is_stopping = moment.evaluations_due = True
    self._progress.start()  # What was measured is not training time.

  def _due(self, moment: Moment) -> tuple[str, ...]:
    """Returns the names of what is to be measured now."""
    raise NotImplementedError

  def _measure(self, name: str, moment: Moment):
    raise NotImplementedError

  def _tell(
    self, moment: Moment, what: str, name: str, values: dict[str, Any], told
  ):
    split = f'{what}_{name}'
    self._writer.write_values(moment.step, split, values)
    moment.measured[split] = evaluation.numbers(values)
    shown = '  '.join(f'{k} {v:.4f}' for k, v in told.items())
    self._say(f'step {moment.step}  {what} {name}: {shown}')


class Evaluate(_Measure):
  """Evaluates some datasets every so often, and all of them at the end.

  What comes next of the training data is evaluated before it is trained on,
  under the name `train`, unless `eval_skip_train` is set.
  """

  def __init__(
    self,
    data: dict[str, base_input.BaseInput],
    *,
    peek: Callable[[], prefetching.FedBatch | None],
    **common,
  ):
    """Sets it up.

    Args:
      data: the datasets by name.
      peek: returns the next training batch, None if there is none.
      **common: see `_Measure`.
    """
    super().__init__(**common)
    self._data = data
    self._peek = peek
    train = self._program.task.train
    if _NEXT in data and not train.eval_skip_train:
      raise errors.UserError(
        f'the eval dataset {_NEXT!r} has the name under which the next training'
        ' batch is evaluated; expected another name, or Train.eval_skip_train'
      )
    during = train.eval_during_training
    self._during = tuple(data) if during is None else tuple(during)

  def _due(self, moment):
    every = self._program.task.train.eval_interval_steps
    in_turn = bool(every) and moment.step % every == 0
    names = self._during if in_turn else ()
    if moment.is_last:
      names = tuple(self._data)
    if in_turn and not self._program.task.train.eval_skip_train:
      names = (_NEXT, *names)
    return names

  def _measure(self, name, moment):
    mdl_vars = self._program.eval_vars(
      moment.state, use_ema=self._program.task.train.eval_use_ema_states
    )
    if name == _NEXT and not self._program.task.train.eval_skip_train:
      values = self._next_train_batch(mdl_vars)
      if not values:
        return
    else:
      values = evaluation.evaluate(
        self._data[name],
        task_program=self._program,
        mdl_vars=mdl_vars,
        put=self._put,
        examples_path=self._examples_path(name, moment.step),
        stop=self._stop,
      )
    found = evaluation.numbers(values)
    names = dict.fromkeys((self._program.loss_aggregator.loss_name, *_TOLD))
    told = {k: found[k] for k in names if k in found}
    self._tell(moment, 'eval', name, values, told)

  def _next_train_batch(self, mdl_vars) -> dict[str, Any]:
    fed = self._peek()
    if fed is None:
      return {}
    means = evaluation.Means(self._program)
    outputs = self._program.eval_step(mdl_vars, fed.arrays)
    means.add(jax.device_get(outputs.replace(per_example={})))
    return means.result()

  def _examples_path(self, name: str, step: int) -> pathlib.Path | None:
    if not self._program.task.evaluate.write_per_example_out:
      return None
    file = f'eval_out_{step}_shard_{jax.process_index()}.jsonl'
    return self._folder / 'eval_out' / name / file


class Decode(_Measure):
  """Decodes all datasets that are to be decoded every so often."""

  def __init__(self, data: dict[str, base_input.BaseInput], **common):
    """Sets it up.

    Args:
      data: the datasets by name.
      **common: see `_Measure`.
    """
    super().__init__(**common)
    self._data = data

  def _due(self, moment):
    train = self._program.task.train
    every = train.decode_interval_steps
    if not every:
      return ()
    in_turn = (
      moment.step % every == 0
      and moment.step >= train.decode_start_after_n_steps
    )
    return tuple(self._data) if in_turn or moment.is_last else ()

  def _measure(self, name, moment):
    values = decoding.decode(
      self._data[name],
      task_program=self._program,
      mdl_vars=self._program.eval_vars(
        moment.state, use_ema=self._program.task.train.decode_use_ema_states
      ),
      put=self._put,
      path=self._folder
      / 'decode_out'
      / name
      / f'decode_out_{moment.step}_shard_0.jsonl',
      profile=self._profile(name),
      stop=self._stop,
    )
    found = evaluation.numbers(values).items()
    told = dict(itertools.islice(found, _MAX_TOLD))
    self._tell(moment, 'decode', name, values, told)

  def _profile(self, name: str) -> profiling.Profile | None:
    decode = self._program.task.decode
    if not decode.profiler_num_steps:
      return None
    return profiling.Profile(
      folder=self._folder / 'summaries' / f'decode_{name}',
      first_step=decode.profiler_capture_step,
      num_steps=decode.profiler_num_steps,
      min_seconds=decode.profiler_min_duration_sec,
      max_num_hosts=decode.profiler_max_num_hosts,
    )

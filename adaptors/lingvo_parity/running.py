"""Runs Lingvo and its translation, and compares them."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_parity import (
  batches,
  checkpoints,
  comparing,
  equalizing,
  lingvo_side,
  our_side,
  results,
  synthetic,
)
from adaptors.params import shrinking
from adaptors.translate import view
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# Number of random ops that are listed.
_NAMED = 4


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a comparison.

  Attributes:
    steps: number of training steps.
    tolerance: as in `comparing.compare`.
    sizes: to shrink the model to; None for its full size.
    is_synthetic: whether batches are synthetic, and not read.
    checkpoint: with initial weights, as in `checkpoints.weights_of`; None for
      Lingvo's initialization.
  """

  steps: int = 20
  tolerance: float = 1e-5
  sizes: shrinking.Sizes | None = None
  is_synthetic: bool = False
  checkpoint: str | None = None


@dataclasses.dataclass(frozen=True)
class LingvoResults:
  """What the process of Lingvo's side returns.

  Attributes:
    batches: arrays by dotted name, one for each step, at least one.
    run: of Lingvo.
  """

  batches: list[dict[str, np.ndarray]]
  run: results.Run


@dataclasses.dataclass(frozen=True)
class Task:
  """A task as both sides run it.

  Attributes:
    params: shrunk, without randomness.
    notes: what was changed.
  """

  params: Any
  notes: list[str]


def task_of(experiment: Any, name: str, options: Options) -> Task:
  """Returns the task to compare.

  Args:
    experiment: the experiment.
    name: its name.
    options: of the comparison.

  Raises:
    UserError: it is not a Lingvo experiment, or the options exclude each other.
  """
  if not isinstance(experiment, lingvo_experiment.LingvoExperiment):
    raise errors.UserError(
      f'{name} is not a Lingvo experiment, so there is nothing to compare it'
      ' with; expected one registered with lingvo.model_registry'
    )
  if options.checkpoint and options.sizes:
    raise errors.UserError(
      '--checkpoint has weights of full size; expected it without --shrink'
    )
  params, notes = experiment.task_params(), []
  if options.sizes:
    params = shrinking.shrink(params, options.sizes)
    sizes = dataclasses.asdict(options.sizes).items()
    notes.append('reduced to ' + ', '.join(f'{k} {size}' for k, size in sizes))
  params, changes = equalizing.equalize(params)
  notes += [f'in both, {change}' for change in changes]
  return Task(params, notes)


def run_lingvo(
  experiment: Any, name: str, options: Options, *, is_bridged: bool
) -> LingvoResults:
  """Runs Lingvo's side; the arguments are as of `task_of`.

  Args:
    experiment: the experiment.
    name: its name.
    options: of the comparison.
    is_bridged: whether the translation is bridged.

  Raises:
    UserError: the input or the checkpoint cannot be read.
  """
  params = task_of(experiment, name, options).params
  weights = None
  if options.checkpoint:
    weights = checkpoints.weights_of(options.checkpoint)
  data = _batches(experiment, params, options)
  by_name = list(map(_by_name, data))
  run = lingvo_side.run(
    params,
    _by_name(batches.trimmed(data[0])),
    by_name[: options.steps],
    weights,
    is_bridged=is_bridged,
  )
  return LingvoResults(by_name, run)


def run(
  experiment: Any,
  name: str,
  options: Options,
  lingvos: Callable[[bool], LingvoResults],
  print_line: Callable[[str], None] = lambda line: None,
) -> comparing.Comparison:
  """Compares an experiment with its translation.

  Args:
    experiment: the experiment.
    name: its name.
    options: of the comparison.
    lingvos: returns the results of `run_lingvo`, given `is_bridged`.
    print_line: prints a line of progress.

  Raises:
    UserError: as of `task_of`, or it has no translation.
  """
  task = task_of(experiment, name, options)
  for note in task.notes:
    print_line(note)
  if options.checkpoint:
    print_line('initial weights from the checkpoint; steps start at 0')
  translated = experiment.translate(task.params)
  for note in translated.notes:
    if view.WITHOUT_EFFECT not in note:
      print_line(f'the translation: {note}')
  done = lingvos(our_side.is_bridged(translated))
  lingvo, data = done.run, list(map(batches.nested, done.batches))
  print_line(f'batches: {batches.describe(data)}')
  for note in _notes(lingvo):
    print_line(note)
  first = batches.trimmed(data[0])
  sides = our_side.Sides(
    translated,
    first,
    data[: options.steps],
    sample=lingvo.sample,
    step_samples=lingvo.step_samples,
  )
  ours = sides.run(lingvo.weights)
  if ours.is_random:
    print_line('the loss here depends on random numbers; it is not compared')
  compare = functools.partial(
    comparing.compare,
    lingvo,
    ours,
    translated.variables,
    mask=batches.mask(first),
    tolerance=options.tolerance,
  )
  compared = compare()
  if compared.may_be_rounding:
    compared = compare(rounded=sides.run(our_side.rounded(lingvo.weights)))
  return compared


def _notes(lingvo: results.Run) -> Iterator[str]:
  """Yields what a user must know about Lingvo's run."""
  if lingvo.sample:
    yield 'in both, the softmax uses the classes that Lingvo has sampled'
  calls = collections.Counter()
  for (function, scope), count in lingvo.fixed.items():
    calls[f'{function} in {scope or "the task"}'] += count
  if calls:
    named = ', '.join(sorted(calls)[:_NAMED])
    more = len(calls) - _NAMED
    yield (
      f'fixed numbers instead of random ones: {named}'
      + (f' and {more} more' if more > 0 else '')
    )
  if lingvo.is_random:
    ops = ', '.join(lingvo.random_ops[:_NAMED]) or 'ops that are not known'
    yield (
      "Lingvo's loss still depends on random numbers; what differs is not"
      f' compared: {ops}'
    )
  if lingvo.eval_device != 'cpu':
    yield (
      f'evaluated by Lingvo as on xla_device={lingvo.eval_device}: on a CPU its'
      ' mixtures of experts have other groups'
    )


def _batches(experiment, params, options: Options) -> list[NestedMap]:
  """Returns a batch per step, at least one."""
  count = max(1, options.steps)
  if options.is_synthetic:
    return synthetic.batches(params, count)
  read = batches.read(experiment, count)
  if options.sizes:
    vocab_size = synthetic.vocab_size(params)
    read = [batches.truncate(b, options.sizes, vocab_size) for b in read]
  return read


def _by_name(batch: NestedMap) -> dict:
  return dict(batch.flatten_items())

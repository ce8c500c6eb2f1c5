"""Runs Lingvo and its translation, and compares them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_parity import (
  batches,
  checkpoints,
  comparing,
  equalizing,
  lingvo_side,
  our_side,
  synthetic,
)
from adaptors.params import shrinking
from pax_compat import errors
from pax_compat.nested_map import NestedMap


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


def run(
  experiment: Any,
  name: str,
  options: Options,
  print_line: Callable[[str], None] = lambda line: None,
) -> comparing.Comparison:
  """Compares an experiment with its translation.

  Args:
    experiment: the experiment.
    name: its name.
    options: of the comparison.
    print_line: prints a line of progress.

  Raises:
    UserError: it is not a Lingvo experiment, has no translation, or its input
      or the checkpoint cannot be read.
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
  params = experiment.task_params()
  if options.sizes:
    params = shrinking.shrink(params, options.sizes)
    sizes = dataclasses.asdict(options.sizes).items()
    print_line('reduced to ' + ', '.join(f'{k} {size}' for k, size in sizes))
  params, notes = equalizing.equalize(params)
  for note in notes:
    print_line(f'in both, {note}')
  weights = None
  if options.checkpoint:
    weights = checkpoints.weights_of(options.checkpoint)
    print_line('initial weights from the checkpoint; steps start at 0')
  translated = experiment.translate(params)
  data = _batches(experiment, params, options)
  print_line(f'batches: {batches.describe(data)}')
  first = batches.trimmed(data[0])
  steps = data[: options.steps]
  lingvo = lingvo_side.run(
    params, _by_name(first), list(map(_by_name, steps)), weights
  )
  if lingvo.is_random:
    print_line("Lingvo's loss depends on random numbers; expect differences")
  ours = our_side.run(
    translated,
    first,
    steps,
    lingvo.weights,
    sample=lingvo.sample,
    step_samples=lingvo.step_samples,
  )
  if lingvo.sample:
    print_line('in both, the softmax uses the classes that Lingvo has sampled')
  return comparing.compare(
    lingvo,
    ours,
    translated.variables,
    mask=batches.mask(first),
    tolerance=options.tolerance,
  )


def _batches(experiment, params, options: Options) -> list[NestedMap]:
  """Returns a batch per step, at least one."""
  count = max(1, options.steps)
  if options.is_synthetic:
    rows, length = synthetic.shape(params.input)
    made = (
      synthetic.batch(params, rows, length, seed=seed) for seed in range(count)
    )
    return [batches.nested(arrays) for arrays in made]
  read = batches.read(experiment, count)
  if options.sizes:
    vocab_size = synthetic.vocab_size(params)
    read = [batches.truncate(b, options.sizes, vocab_size) for b in read]
  return read


def _by_name(batch: NestedMap) -> dict:
  return dict(batch.flatten_items())

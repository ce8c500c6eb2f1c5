"""Runs Lingvo and its translation side by side, and compares them."""

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
  """How a comparison is made.

  Attributes:
    steps: of training.
    tolerance: as in `comparing.compare`.
    sizes: that the model is shrunk to; None for its full size.
    is_synthetic: whether batches are made up, and not read.
    checkpoint: whose weights it starts with, as in `checkpoints.weights_of`;
      None for new ones, as Lingvo makes them.
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
  say: Callable[[str], None] = lambda line: None,
) -> comparing.Comparison:
  """Compares an experiment with its translation.

  Args:
    experiment: the experiment.
    name: its name.
    options: how it is done.
    say: takes lines about what is compared.

  Raises:
    UserError: it is no experiment of Lingvo's, has no translation, or its input
      or the checkpoint cannot be read.
  """
  if not isinstance(experiment, lingvo_experiment.LingvoExperiment):
    raise errors.UserError(
      f'{name} is no experiment of Lingvo, so that there is nothing to compare'
      ' it with; expected one that is registered with lingvo.model_registry'
    )
  if options.checkpoint and options.sizes:
    raise errors.UserError(
      '--checkpoint holds weights of full size; expected it without --shrink'
    )
  params = experiment.task_params()
  if options.sizes:
    params = shrinking.shrink(params, options.sizes)
    told = dataclasses.asdict(options.sizes).items()
    say('reduced to ' + ', '.join(f'{name} {size}' for name, size in told))
  params, notes = equalizing.equalize(params)
  for note in notes:
    say(f'in both, {note}')
  weights = None
  if options.checkpoint:
    weights = checkpoints.weights_of(options.checkpoint)
    say('weights of the checkpoint; steps count from 0')
  translated = experiment.translate(params)
  data = _batches(experiment, params, options)
  say(f'batches: {batches.described(data)}')
  first = batches.trimmed(data[0])
  steps = data[: options.steps]
  lingvo = lingvo_side.run(
    params, _by_name(first), list(map(_by_name, steps)), weights
  )
  if lingvo.is_random:
    say('random numbers have part in the loss of Lingvo; expect differences')
  ours = our_side.run(
    translated,
    first,
    steps,
    lingvo.weights,
    sample=lingvo.sample,
    step_samples=lingvo.step_samples,
  )
  if lingvo.sample:
    say('in both, the softmax has the classes that Lingvo has sampled')
  return comparing.compare(
    lingvo,
    ours,
    translated.variables,
    mask=batches.mask(first),
    tolerance=options.tolerance,
  )


def _batches(experiment, params, options: Options) -> list[NestedMap]:
  """Returns a batch for each step, and one if there is none."""
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
    read = [batches.cut(b, options.sizes, vocab_size) for b in read]
  return read


def _by_name(batch: NestedMap) -> dict:
  return dict(batch.flatten_items())

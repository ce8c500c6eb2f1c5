"""Times training steps of language models: ours against TensorFlow Lingvo's.

    python -m benchmarks.vs_lingvo --json=/tmp/vs_lingvo.json

Two models, each at three sizes, train in one process, in turns: the small
Transformer of `lm.python_docs`, on a batch of each of its shapes; and the word
LSTM of `lm.one_billion_wds` with its sampled softmax, reduced, on made-up
words. Ours is the trainer's compiled step; Lingvo's is its own graph and train
op, in one session, with the batch fed. Both start from the same weights, and
must have the same losses before anything is timed; those of the LSTM only
nearly, since its dropout and its samples are random.

A round makes `--steps` steps of both on each shape, and who goes first changes
from round to round. A ratio is the median over the rounds of our steps per
second over Lingvo's in the same round, so that what else the machine does
meanwhile meets both. `all` is the mean step: shapes weigh as often as they come
among the first batches. The goals are 1.0 for the Transformer and 1.5 for the
LSTM.

Of a step of transformer-128 on 64 rows of 64 letters, 0.345 seconds of
processor time, the learner and the trainer take 0.004. Page faults take 0.1,
57,000 of them: XLA takes the temporary memory of a step, 235 MB, in one piece,
and glibc gives so large a piece back to the kernel after each step. With huge
pages, which `pax_compat.main` and this program ask for (GLIBC_TUNABLES=
glibc.malloc.hugetlb=1; =0 to compare), there are 600 faults, and the step takes
0.28; if all memory were kept, it would take 0.235. Lingvo's step is the same.
"""

import dataclasses
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from adaptors.experiments import lingvo_experiment
from adaptors.lingvo_parity import batches as parity_batches
from adaptors.lingvo_parity import synthetic
from adaptors.lingvo_registry import lookup
from adaptors.lingvo_registry.options import LingvoOptions
from benchmarks import command_line, lingvo_peer, peers
from pax_compat import base_layer, errors, experiment_sources, learners
from pax_compat.cli import huge_pages
from pax_compat.trainer import partitioning, program

_ONLY = flags.DEFINE_list(
  'only', [], 'Cases to time, such as transformer-128; all by default.'
)

_ALL = 'all'
# How far losses may be apart that have random numbers in them.
_RANDOM_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
  """A model at a size.

  Attributes:
    name: of the case.
    experiment: the registered name.
    sizes: what the experiment's class is changed to, by attribute.
    goal: our steps per second are to be at least so many times Lingvo's.
    made_up: rows and length of a batch of made-up ids; None for the
      experiment's own input.
    is_random: whether losses have random numbers in them.
  """

  name: str
  experiment: str
  sizes: Mapping[str, int]
  goal: float
  made_up: tuple[int, int] | None = None
  is_random: bool = False

  def build(self) -> lingvo_experiment.LingvoExperiment:
    """Returns the experiment at that size."""
    options = experiment_sources.SourceOptions()
    registered = type(lookup.find_model_params(self.experiment, options))
    resized = type(registered.__name__, (registered,), dict(self.sizes))
    return lingvo_experiment.LingvoExperiment(
      name=self.name, model_params=resized(), options=LingvoOptions()
    )


def _transformer(dims: int) -> Case:
  return Case(
    name=f'transformer-{dims}',
    experiment='lm.python_docs.TransformerLmTiny',
    sizes=dict(MODEL_DIM=dims, HIDDEN_DIM=4 * dims),
    goal=1.0,
  )


def _lstm(dims: int) -> Case:
  return Case(
    name=f'lstm-{dims}',
    experiment='lm.one_billion_wds.WordLevelOneBwdsSimpleSampledSoftmax',
    sizes=dict(
      EMBEDDING_DIM=dims,
      RNN_STATE_DIM=4 * dims,
      VOCAB_SIZE=128 * dims,
      NUM_SAMPLED=4 * dims,
      NUM_EMBEDDING_SHARDS=1,
    ),
    goal=1.5,
    made_up=(32, 40),
    is_random=True,
  )


CASES = (
  *map(_transformer, (64, 128, 256)),
  *map(_lstm, (32, 64, 128)),
)


def measure(case: Case, *, rounds: int, steps: int) -> dict[str, Any]:
  """Compares the peers on a case, and times them.

  Args:
    case: the case.
    rounds: how many rounds.
    steps: steps of each peer on each shape in a round.

  Returns:
    What `rates` returns, with the losses by peer, and the goal.

  Raises:
    UserError: the peers' losses differ.
  """
  experiment = case.build()
  batches, shares = _batches(case, experiment)
  some = next(iter(batches.values()))
  task_program = program.create(
    experiment.task().Instantiate(), partitioning.create_mesh(None, None), some
  )
  state = task_program.init_state(some)
  theta = experiment.translated.variables.to_lingvo(
    learners.by_path(state.mdl_vars[base_layer.PARAMS])
  )
  theta = {path: np.array(value) for path, value in theta.items()}
  with lingvo_peer.training(experiment.task_params(), batches, theta) as lingvo:
    both = {
      'ours': peers.OurPeer(task_program, state, batches),
      'lingvo': lingvo,
    }
    losses = peers.compare(
      both, list(batches), _RANDOM_TOLERANCE if case.is_random else None
    )
    seconds = peers.time_in_turns(
      both, list(batches), rounds=rounds, steps=steps
    )
  told = peers.summary(seconds, shares)
  return {'losses': losses, 'goal': case.goal, **rates(told)}


def _batches(case: Case, experiment) -> tuple[dict, dict[str, float]]:
  """Returns a batch of each shape, and the share of the shapes, by shape."""
  if case.made_up is None:
    return peers.batches_by_shape(experiment, lingvo_peer.FIELDS)
  batch = parity_batches.nested(
    synthetic.batch(experiment.task_params(), *case.made_up)
  )
  name = f'ids[{",".join(map(str, case.made_up))}]'
  return {name: batch}, {name: 1.0}


def rates(told: Mapping[str, Any]) -> dict[str, Any]:
  """Returns steps per second, by peer and shape, and ratios, by shape.

  Args:
    told: what `peers.summary` says of 'ours' and 'lingvo'.
  """
  return {
    'shares': told['shares'],
    'steps_per_second': {
      peer: {shape: 1 / s for shape, s in shapes.items()}
      for peer, shapes in told['seconds'].items()
    },
    'ratios': {s: 1 / ratio for s, ratio in told['ratios']['lingvo'].items()},
  }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the results of some cases as text, a line for each shape."""
  heads = ['case'.ljust(18), 'shape'.ljust(14), 'share']
  heads += [h.rjust(14) for h in ('ours steps/s', 'lingvo steps/s')]
  lines = [' '.join([*heads, 'ours/lingvo', 'goal'])]
  for name, result in results.items():
    speeds = result['steps_per_second']
    for shape, ratio in result['ratios'].items():
      goal = f'{result["goal"]:4.1f}' if shape == _ALL else ''
      cells = [
        name.ljust(18),
        shape.ljust(14),
        f'{result["shares"].get(shape, 1.0):5.2f}',
        f'{speeds["ours"][shape]:14.2f}',
        f'{speeds["lingvo"][shape]:14.2f}',
        f'{ratio:11.2f}',
        goal,
      ]
      lines.append(' '.join(cells).rstrip())
  return '\n'.join(lines)


def chosen(names: Sequence[str]) -> list[Case]:
  """Returns the cases of those names, or all.

  Raises:
    UserError: there is no such case.
  """
  known = {case.name: case for case in CASES}
  for name in names:
    if name not in known:
      raise errors.UserError(
        f'--only: there is no case {name!r}' + errors.did_you_mean(name, known)
      )
  return [known[name] for name in names or known]


def main(argv: list[str]):
  """Measures, prints the table, and writes the JSON."""
  del argv
  results = {}
  try:
    for case in chosen(_ONLY.value):
      results[case.name] = measure(
        case, rounds=command_line.ROUNDS.value, steps=command_line.STEPS.value
      )
      gc.collect()
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  print(table(results))
  command_line.write(
    {
      'rounds': command_line.ROUNDS.value,
      'steps': command_line.STEPS.value,
      'cpus': len(os.sched_getaffinity(0)),
      'devices': [d.device_kind for d in jax.devices()],
      'cases': results,
    }
  )


if __name__ == '__main__':
  huge_pages.start_again_with()
  logging.set_verbosity(logging.WARNING)
  app.run(main)

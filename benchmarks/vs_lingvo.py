"""Times training steps of language models: ours against TensorFlow Lingvo's.

    python -m benchmarks.vs_lingvo --json=/tmp/vs_lingvo.json

Two models, each at three sizes, train alternately in one process: the small
Transformer of `lm.python_docs`, on a batch of each of its shapes; and a shrunk
word LSTM of `lm.one_billion_wds` with its sampled softmax, on synthetic words.
Ours is the trainer's compiled step; Lingvo's is its own graph and train op, in
one session, with a fed batch. Both start from the same weights, and must have
equal losses before they are timed; approximately equal for the LSTM, whose
dropout and samples are random.

A round runs `--steps` steps of both on each shape, and the order alternates
between rounds. A ratio is the median over the rounds of our steps per second
over Lingvo's in the same round, so that other load affects both. `all` is the
mean step, weighted by the frequency of shapes in the first batches. The goals
are 1.0 for the Transformer and 1.5 for the LSTM.

A step of transformer-128 on 64 rows of 64 letters takes 0.345 seconds of
processor time, of which the learner and the trainer take 0.004. 57,000 page
faults take 0.1: XLA allocates the temporary memory of a step, 235 MB, at once,
and glibc returns it to the kernel after each step. With huge pages, which
`pax_compat.main` and this program enable (GLIBC_TUNABLES=
glibc.malloc.hugetlb=1; =0 to compare), there are 600 faults, and the step takes
0.28; without any returned memory it would take 0.235. Lingvo's step is the
same.
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
# Largest relative difference of losses that depend on random numbers.
_RANDOM_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
  """A model at a size.

  Attributes:
    name: of the case.
    experiment: the registered name.
    sizes: changed class attributes of the experiment.
    goal: the smallest acceptable ratio of our steps per second to Lingvo's.
    synthetic_shape: rows and length of a synthetic batch; None for the
      experiment's own input.
    is_random: whether losses depend on random numbers.
  """

  name: str
  experiment: str
  sizes: Mapping[str, int]
  goal: float
  synthetic_shape: tuple[int, int] | None = None
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
    synthetic_shape=(32, 40),
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
    rounds: number of rounds.
    steps: steps of each peer on each shape in a round.

  Returns:
    The results of `rates`, with the losses by peer, and the goal.

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
  summary = peers.summary(seconds, shares)
  return {'losses': losses, 'goal': case.goal, **rates(summary)}


def _batches(case: Case, experiment) -> tuple[dict, dict[str, float]]:
  """Returns a batch of each shape, and the frequency of each shape."""
  if case.synthetic_shape is None:
    return peers.batches_by_shape(experiment, lingvo_peer.FIELDS)
  batch = parity_batches.nested(
    synthetic.batch(experiment.task_params(), *case.synthetic_shape)
  )
  name = f'ids[{",".join(map(str, case.synthetic_shape))}]'
  return {name: batch}, {name: 1.0}


def rates(summary: Mapping[str, Any]) -> dict[str, Any]:
  """Returns steps per second, by peer and shape, and ratios, by shape.

  Args:
    summary: of `peers.summary`, of 'ours' and 'lingvo'.
  """
  return {
    'shares': summary['shares'],
    'steps_per_second': {
      peer: {shape: 1 / s for shape, s in shapes.items()}
      for peer, shapes in summary['seconds'].items()
    },
    'ratios': {
      s: 1 / ratio for s, ratio in summary['ratios']['lingvo'].items()
    },
  }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the results of cases as text, a line per shape."""
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
  """Returns the cases of these names, or all.

  Raises:
    UserError: a case is unknown.
  """
  known = {case.name: case for case in CASES}
  for name in names:
    if name not in known:
      raise errors.UserError(
        f'--only: unknown case {name!r}' + errors.did_you_mean(name, known)
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

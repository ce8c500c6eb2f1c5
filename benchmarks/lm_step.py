"""Times a train step: ours, a bare JAX function, and TensorFlow Lingvo.

    python -m benchmarks.lm_step --json=/tmp/lm_step.json

The experiment is found by name, as in the trainer, and its own input provides
one batch of each bucket's shape. Then three peers train on those batches,
alternating in one process:

* ours: the trainer's compiled step;
* bare: the same network in plain JAX (see `bare_lm`); the goal is at most 1.05
  times its time;
* lingvo: Lingvo's own graph and train op, in one session.

All start from the same weights, and must have equal losses before they are
timed. A round runs `--steps` steps of each peer on each shape; the order of the
peers rotates between rounds. A ratio is the median over the rounds of our time
over the peer's time in the same round, so that other load affects both. `all`
is the mean step, weighted by the frequency of shapes in the first batches.

Measured 2026-11-27, two cores of an AMD EPYC, otherwise idle, JAX 0.10.2,
TensorFlow 2.21 without oneDNN's kernels, --rounds=3:

    shape        share  ours ms  bare ms  lingvo ms  ours/bare  ours/lingvo
    ids[16,256]   0.73    357.6    463.4     1145.7      0.762        0.301
    ids[32,128]   0.18    305.6    380.9      771.8      0.741        0.375
    ids[64,64]    0.08    258.1    300.1      553.2      0.853        0.479
    all           1.00    343.4    435.9     1015.3      0.770        0.319

With blocks of 64 targets in attention, 0.701 of bare; but compiling a step then
takes a fifth longer.

The bare function uses plain attention by default, its faster variant. Our step
is faster because of `attention_ops.attend`, which is blockwise on CPUs; with
`attend` in both, processor times agreed within 3%.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from benchmarks import bare_lm, command_line, lingvo_peer, peers
from pax_compat import (
  base_layer,
  errors,
  experiment_sources,
  learners,
)
from pax_compat.trainer import partitioning, program

_EXPERIMENT = flags.DEFINE_string(
  'experiment', 'lm.python_docs.TransformerLmTiny', 'Name of the experiment.'
)
_LINGVO = flags.DEFINE_bool('lingvo', True, 'Whether Lingvo is timed too.')
_ATTENTION = flags.DEFINE_enum(
  'attention', 'plain', ['plain', 'jax.nn'], 'Attention of the bare function.'
)


class BarePeer:
  """The jitted step of `bare_lm`."""

  def __init__(self, settings: bare_lm.Settings, params, batches):
    init, self._step = bare_lm.make_step(settings)
    self._state = init(bare_lm.weights_of(params))
    self._batches = {
      shape: {k: jax.device_put(b[k]) for k in ('ids', 'labels', 'weights')}
      for shape, b in batches.items()
    }

  def step(self, shape: str) -> jax.Array:
    self._state, loss = self._step(self._state, self._batches[shape])
    return loss

  def wait(self):
    jax.block_until_ready(self._state)


def measure(
  name: str, *, rounds: int, steps: int, attention: str, with_lingvo: bool
) -> dict[str, Any]:
  """Compares the peers and times them.

  Args:
    name: of the experiment.
    rounds: number of rounds.
    steps: steps of each peer on each shape in a round.
    attention: of the bare function, as in `bare_lm.Settings`.
    with_lingvo: whether to time Lingvo too.

  Returns:
    The results of `peers.summary`, with the settings.

  Raises:
    UserError: the experiment is unknown, or the peers' losses differ.
  """
  experiment = experiment_sources.find(name, experiment_sources.SourceOptions())
  batches, shares = peers.batches_by_shape(experiment, lingvo_peer.FIELDS)
  task = experiment.task()
  mesh = partitioning.create_mesh(None, None)
  some = next(iter(batches.values()))
  task_program = program.create(task.Instantiate(), mesh, some)
  state = task_program.init_state(some)
  params = jax.tree.map(np.array, state.mdl_vars[base_layer.PARAMS])
  with contextlib.ExitStack() as stack:
    peer_by_name = {
      'ours': peers.OurPeer(task_program, state, batches),
      'bare': BarePeer(_settings(task, attention), params, batches),
    }
    if with_lingvo:
      theta = experiment.translated.variables.to_lingvo(
        learners.by_path(params)
      )
      peer_by_name['lingvo'] = stack.enter_context(
        lingvo_peer.training(experiment.task_params(), batches, theta)
      )
    losses = peers.compare(peer_by_name, list(batches))
    seconds = peers.time_in_turns(
      peer_by_name, list(batches), rounds=rounds, steps=steps
    )
  return {
    'experiment': name,
    'rounds': rounds,
    'steps': steps,
    'attention': attention,
    'cpus': len(os.sched_getaffinity(0)),
    'devices': [d.device_kind for d in jax.devices()],
    'losses': losses,
    **peers.summary(seconds, shares),
  }


def _settings(task, attention: str) -> bare_lm.Settings:
  """Returns the task's training settings for the bare function."""
  optimizer = task.train.learner.optimizer.Instantiate()
  return bare_lm.Settings(
    learning_rate=optimizer.learning_rate_fn(),
    beta1=optimizer.beta1,
    beta2=optimizer.beta2,
    epsilon=optimizer.epsilon,
    clip_norm=optimizer.clip_gradient_norm_to_value,
    attention=attention,
  )


def table(result: Mapping[str, Any]) -> str:
  """Returns the result as text, a line per shape."""
  seconds, ratios = result['seconds'], result['ratios']
  heads = [
    'shape'.ljust(16),
    'share',
    *(f'{name} ms'.rjust(10) for name in seconds),
    *(f'ours/{name}'.rjust(12) for name in ratios),
  ]
  lines = [' '.join(heads)]
  for shape in seconds['ours']:
    share = result['shares'].get(shape, 1.0)
    cells = [shape.ljust(16), f'{share:5.2f}']
    cells += [f'{seconds[name][shape] * 1e3:10.1f}' for name in seconds]
    cells += [f'{ratios[name][shape]:12.3f}' for name in ratios]
    lines.append(' '.join(cells))
  return '\n'.join(lines)


def main(argv: list[str]):
  """Measures, prints the table, and writes the JSON."""
  del argv
  try:
    result = measure(
      _EXPERIMENT.value,
      rounds=command_line.ROUNDS.value,
      steps=command_line.STEPS.value,
      attention=_ATTENTION.value,
      with_lingvo=_LINGVO.value,
    )
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  print(table(result))
  command_line.write(result)


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  app.run(main)

"""Times training steps of Lingvo tasks against TensorFlow Lingvo's own.

    python -m benchmarks.family_step --families=mt,rnmt,asr,image,punctuator
    python -m benchmarks.family_step --families=asr_wpm --translation=bridge

The families are the shrunk tasks of the bridge's tests, see
`tests/adaptors/bridge/families`, some of them with a shorter name. They are
native (translated to JAX) or bridged (Lingvo's graph compiled by XLA), as
`--translation` says. For each of them the trainer's compiled step and Lingvo's
own graph and train op train on one batch, alternating in one process. Both
start from the same values, and must have equal losses before they are timed.

A ratio is the median over the rounds of our steps per second over Lingvo's in
the same round. The tasks are so small that the overhead of many small ops
dominates, not arithmetic.

TensorFlow's oneDNN kernels are off, since they corrupt memory in the graphs of
Lingvo's recurrent layers; TF_ENABLE_ONEDNN_OPTS=1 turns them on.
"""

import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from absl import app, flags, logging

from adaptors.bridge import task as bridge_task
from adaptors.lingvo_parity import batches as parity_batches
from benchmarks import command_line, lingvo_peer, peers, vs_lingvo
from pax_compat import errors, learners
from pax_compat.cli import huge_pages
from pax_compat.trainer import partitioning, program
from tests.adaptors.bridge import families

_FAMILIES = flags.DEFINE_list(
  'families', [], 'Families to time, such as asr_wpm; all by default.'
)
_TRANSLATION = flags.DEFINE_enum(
  'translation',
  'auto',
  ['auto', 'native', 'bridge'],
  'How tasks run: translated (native) or bridged; auto translates if possible.',
)

_ONEDNN = 'TF_ENABLE_ONEDNN_OPTS'
_SHAPE = 'batch'
# Shorter names of families.
_SHORT = {
  'mt': 'mt_transformer',
  'rnmt': 'mt_rnmt',
  'asr': 'asr_grapheme',
  'image': 'lenet5',
  'car': 'starnet_kitti',
}


def known_families() -> list[str]:
  """Returns the names of the families."""
  names = [m.name for m in pkgutil.iter_modules(families.__path__)]
  return [n for n in names if hasattr(family_of(n), 'task_params')]


def family_of(name: str) -> ModuleType:
  """Returns the module of a family, by its name or a shorter one.

  Raises:
    UserError: the family is unknown.
  """
  known = [m.name for m in pkgutil.iter_modules(families.__path__)]
  name = _SHORT.get(name, name)
  if name not in known:
    raise errors.UserError(
      f'--families: unknown family {name!r}' + errors.did_you_mean(name, known)
    )
  return importlib.import_module(f'{families.__name__}.{name}')


def measure(
  name: str, *, rounds: int, steps: int, translation: str = 'auto'
) -> dict[str, Any]:
  """Compares the peers on a family's task, and times them.

  Args:
    name: of the family.
    rounds: number of rounds.
    steps: steps of each peer in a round.
    translation: `auto`, `native` or `bridge`.

  Returns:
    `kind`, native or bridged; `losses` by peer, `steps_per_second` by peer, and
    the `ratio`.

  Raises:
    UserError: the family is unknown, or the peers' losses differ.
  """
  family = family_of(name)
  params, batch = family.task_params(), family.batch(0)
  nested = parity_batches.nested(batch)
  kind, translated = _translated(family, params, name, translation)
  task_program = program.create(
    translated.config.Instantiate(),
    partitioning.create_mesh(None, None),
    nested,
  )
  state = task_program.init_state(nested)
  with lingvo_peer.training(
    params,
    {_SHAPE: batch},
    _theta(translated, state),
    fields=list(batch),
    static_shapes=getattr(family, 'STATIC_SHAPES', False),
  ) as lingvo:
    both = {
      'ours': peers.OurPeer(task_program, state, {_SHAPE: nested}),
      'lingvo': lingvo,
    }
    losses = peers.compare(both, [_SHAPE])
    seconds = peers.time_in_turns(both, [_SHAPE], rounds=rounds, steps=steps)
  rates = vs_lingvo.rates(peers.summary(seconds, {_SHAPE: 1.0}))
  speeds = rates['steps_per_second']
  return {
    'kind': kind,
    'losses': losses,
    'steps_per_second': {peer: s[_SHAPE] for peer, s in speeds.items()},
    'ratio': rates['ratios'][_SHAPE],
  }


def _translated(
  family: ModuleType, params: Any, name: str, translation: str
) -> tuple[str, Any]:
  """Returns how a task runs, and the task in JAX."""
  if translation != 'bridge':
    route = bridge_task.route(params, name, translation)
    if route.kind is not bridge_task.Kind.BRIDGED:
      return str(route.kind), route.translated
  # Some families need another device of Lingvo's to be bridged.
  device = getattr(family, 'XLA_DEVICE', None)
  bridged = bridge_task.bridge_task(params, name, xla_device=device)
  return str(bridge_task.Kind.BRIDGED), bridged


def _theta(translated, state) -> dict:
  """Returns the variables of a state by Lingvo's theta path."""
  found = {}
  for tree in state.mdl_vars.values():
    found |= learners.by_path(tree)
  ours = {v.jax for v in translated.variables}
  return translated.variables.to_lingvo(
    {path: value for path, value in found.items() if path in ours}
  )


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns the steps per second as text, a line per family."""
  lines = ['family             kind              ours/s  lingvo/s  ours/lingvo']
  for name, result in results.items():
    speeds = result['steps_per_second']
    lines.append(
      f'{name:18} {result["kind"]:15} {speeds["ours"]:8.1f}'
      f' {speeds["lingvo"]:9.1f} {result["ratio"]:12.2f}'
    )
  return '\n'.join(lines)


def measure_all(names: Sequence[str], **settings: Any) -> dict:
  """Returns the results of `measure` by family."""
  results = {}
  for name in names:
    results[name] = measure(name, **settings)
    gc.collect()
  return results


def main(argv: list[str]):
  """Measures, prints the table, and writes the JSON."""
  del argv
  try:
    results = measure_all(
      _FAMILIES.value or known_families(),
      rounds=command_line.ROUNDS.value,
      steps=command_line.STEPS.value,
      translation=_TRANSLATION.value,
    )
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  print(table(results))
  command_line.write(results)


def without_onednn():
  """Restarts this process with oneDNN off, unless the variable is set.

  Modules imported above read the environment.
  """
  if _ONEDNN not in os.environ:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, _ONEDNN: '0'})


if __name__ == '__main__':
  without_onednn()
  huge_pages.start_again_with()
  logging.set_verbosity(logging.WARNING)
  app.run(main)

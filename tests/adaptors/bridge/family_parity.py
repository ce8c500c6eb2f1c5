"""Compares bridged tasks with Lingvo, by family of tasks.

A family is a module of `tests.adaptors.bridge.families`. It has `task_params()`
and `batch(seed)`, which returns arrays by dotted name; `XLA_DEVICE`, if the
bridge cannot use static shapes; `STATIC_SHAPES`, if Lingvo's graph needs them;
and `LEARNS_LIKE`, the name of another family with the same learner: then the
slow training with the learner is skipped.

Test files call `run` once for all their families; it starts a process with
eight devices.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge import model as bridged_model
from adaptors.bridge import task as bridge_task
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity import differences
from adaptors.lingvo_parity.batches import nested
from pax_compat import base_layer, learners
from pax_compat.trainer import program
from tests.adaptors.translate import lingvo_training
from tests.pax_compat import forking, launching

STEPS = 3
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
# Of layers' updates of variables, relative to the largest value.
STATISTICS_TOLERANCE = 1e-5
# Of the change of weights. Adam's first steps normalize gradients, which
# amplifies rounding errors of small ones.
MOVES_TOLERANCE = 1e-2

_FAMILIES = 'tests.adaptors.bridge.families'
_TRACKER = 'learners[0].grad_norm_tracker'

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class LingvoRun:
  """A training run of Lingvo.

  Attributes:
    variables: before each step and after the last one, by theta path.
    losses: of each step.
    gradients: of each step's loss, by theta path, before clipping.
  """

  variables: list[Arrays]
  losses: list[float]
  gradients: list[Arrays]


@contextlib.contextmanager
def _without_assertions() -> Iterator[None]:
  """Leaves Lingvo's run-time assertions out of graphs built within."""
  py_utils_flags = lingvo_runtime.module('lingvo.core.py_utils_flags')
  enabled = py_utils_flags.enable_asserts
  py_utils_flags.enable_asserts = lambda: False
  try:
    yield
  finally:
    py_utils_flags.enable_asserts = enabled


def run_lingvo(
  params: Any, batches: Sequence[Arrays], *, static_shapes: bool = False
) -> LingvoRun:
  """Trains a task in Lingvo's graph mode, a step on each batch.

  Args:
    params: of the task.
    batches: by dotted name.
    static_shapes: as of `fed_task.build`.
  """
  gradients = {}
  with (
    _without_assertions(),
    fed_task.build(
      params,
      batches[0],
      static_shapes=static_shapes,
      optimized=False,
      prepare=functools.partial(lingvo_training.keep_gradients, gradients),
    ) as made,
  ):
    task, session = made.task, made.session
    variables = dict(task.vars.FlattenItems())
    made.start()
    done = LingvoRun([session.run(variables)], [], [])
    for batch in batches:
      loss, found, _ = session.run(
        [task.loss, gradients, task.train_op], made.feed_dict(batch)
      )
      done.losses.append(float(loss))
      done.gradients.append(found)
      done.variables.append(session.run(variables))
  return done


class Bridged:
  """A bridged task with its program on some devices."""

  def __init__(self, translated: Any, batch: Arrays, devices: Sequence[Any]):
    """Creates the program.

    Args:
      translated: the task.
      batch: for its shapes.
      devices: to shard batches over.
    """
    self.variables = translated.variables
    mesh = jax.sharding.Mesh(
      np.array(devices),
      ('data',),
      axis_types=(jax.sharding.AxisType.Auto,),
    )
    config = translated.config.clone()
    # Unused norms take seconds to compile.
    config.train.learner.set(grad_norm_summary=False, var_norm_summary=False)
    self.program = program.create(config.Instantiate(), mesh, nested(batch))

  def state(self, theta: Arrays) -> program.TrainState:
    """Returns the state before the first step, with Lingvo's variables."""
    mdl_vars = self.mdl_vars(theta)
    copies = jax.tree.map(jnp.copy, mdl_vars)
    opt_state = self.program.learner.init(
      copies[base_layer.PARAMS],
      weight_metas=self.program.weight_metas,
      variables=copies,
    )
    state = program.TrainState(
      step=jnp.zeros([], jnp.int32), mdl_vars=mdl_vars, opt_state=opt_state
    )
    # Sharded like the output of a step, else the first step is compiled twice.
    return jax.tree.map(
      lambda x, like: jax.device_put(x, like.sharding),
      state,
      self.program.abstract_state,
    )

  def mdl_vars(self, theta: Arrays, step: int = 0) -> Any:
    """Returns variables by collection.

    Args:
      theta: Lingvo's by theta path.
      step: number of steps.
    """
    given = {v.jax: theta[v.theta[0]] for v in self.variables}
    given[bridged_model.GLOBAL_STEP] = np.int32(step)

    def put(path, x):
      value = given[learners.path_name(path)]
      assert np.shape(value) == x.shape
      return jax.device_put(jnp.array(value, x.dtype), x.sharding)

    return {
      name: jax.tree_util.tree_map_with_path(put, tree)
      for name, tree in self.program.abstract_state.mdl_vars.items()
    }

  def theta(self, *trees: Any) -> dict[str, np.ndarray]:
    """Returns the values in trees of variables, by theta path."""
    found = {}
    for tree in trees:
      found |= learners.by_path(tree)
    return {
      v.theta[0]: np.asarray(found[v.jax])
      for v in self.variables
      if v.jax in found
    }

  @functools.cached_property
  def loss_and_gradients(self) -> Callable:
    """(variables, batch) -> (loss, gradients, updates)."""

    @jax.jit
    def compiled(params, others, batch):
      def loss(params):
        value, _, _, updated = self.program.forward(
          {**others, base_layer.PARAMS: params}, batch, jax.random.key(0)
        )
        return value, updated.get(base_layer.NON_TRAINABLE, {})

      return jax.value_and_grad(loss, has_aux=True)(params)

    def called(mdl_vars, batch):
      others = {k: v for k, v in mdl_vars.items() if k != base_layer.PARAMS}
      (loss, written), gradients = compiled(
        mdl_vars[base_layer.PARAMS], others, self.sharded(batch)
      )
      return loss, self.theta(gradients), self.theta(written)

    return called

  def sharded(self, batch: Arrays) -> Any:
    """Returns a batch sharded over the devices."""
    return self.program.put(nested(batch))


def report(name: str) -> dict[str, Any]:
  """Trains a family's task in Lingvo and bridged, and compares.

  Args:
    name: of the family.

  Returns:
    The argument of `check`; see `_from_lingvos_weights` and
    `_from_initial_weights`; and the seconds of each component.
  """
  seconds = {}

  def timed(what, function, *args, **kwargs):
    started = time.process_time()
    result = function(*args, **kwargs)
    seconds[what] = time.process_time() - started
    return result

  family = importlib.import_module(f'{_FAMILIES}.{name}')
  params = family.task_params()
  batches = [family.batch(seed) for seed in range(STEPS)]
  static = getattr(family, 'STATIC_SHAPES', False)
  lingvo = timed('Lingvo', run_lingvo, params, batches, static_shapes=static)
  device = getattr(family, 'XLA_DEVICE', None)
  translated = bridge_task.bridge_task(params, name, xla_device=device)
  results = {'seconds': seconds}
  results['partitioned'] = timed(
    'eight devices', _from_lingvos_weights, translated, lingvo, batches
  )
  if not hasattr(family, 'LEARNS_LIKE'):
    results['trained'] = timed(
      'training', _from_initial_weights, translated, lingvo, batches
    )
  return results


def _from_lingvos_weights(translated, lingvo, batches) -> dict[str, Any]:
  """Compares each step from Lingvo's variables before it, on all devices.

  Returns:
    `losses`, `gradients` and `statistics` (updates of layers), one per step,
    the latter by theta path.
  """
  bridged = Bridged(translated, batches[0], jax.devices())
  results = {'devices': len(jax.devices())}
  results |= {'losses': [], 'gradients': [], 'statistics': []}
  for step, batch in enumerate(batches):
    mdl_vars = bridged.mdl_vars(lingvo.variables[step], step)
    loss, gradients, written = bridged.loss_and_gradients(mdl_vars, batch)
    expected, after = lingvo.gradients[step], lingvo.variables[step + 1]
    assert set(gradients) == set(expected)
    results['losses'].append(_of_losses(loss, lingvo.losses[step]))
    results['gradients'].append(differences.of_gradients(gradients, expected))
    results['statistics'].append(
      {p: differences.of_outputs(x, after[p]) for p, x in written.items()}
    )
  return results


def _from_initial_weights(translated, lingvo, batches) -> dict[str, Any]:
  """Compares training by the task's own learner, on one device.

  Returns:
    `losses`, one per step; and at the end `moves` (changes of weights) and
    `statistics`, both by theta path.
  """
  bridged = Bridged(translated, batches[0], jax.devices()[:1])
  first, last = lingvo.variables[0], lingvo.variables[-1]
  state, losses = bridged.state(first), []
  for batch, expected in zip(batches, lingvo.losses, strict=True):
    state, outputs = bridged.program.train_step(state, bridged.sharded(batch))
    losses.append(_of_losses(outputs['loss'], expected))
  variables = bridged.theta(*state.mdl_vars.values())
  trained = set(lingvo.gradients[0])
  statistics = {p: x for p, x in variables.items() if p not in trained}
  statistics |= _of_learner(state.opt_state.norms)
  moves = {
    path: differences.of_gradients(
      {path: variables[path] - first[path]}, {path: last[path] - first[path]}
    )[path]
    for path in trained - _noisy(lingvo.gradients)
  }
  return {
    'losses': losses,
    'moves': moves,
    'statistics': {
      p: differences.of_outputs(x, last[p]) for p, x in statistics.items()
    },
  }


def _of_losses(ours, lingvos) -> float:
  return differences.of_numbers(float(ours), lingvos)


def _of_learner(norms) -> Arrays:
  """Returns a learner's gradient norm statistics by theta path.

  Without averages: Lingvo's graph may divide them by the weight before or after
  the step, in no fixed order.
  """
  if norms is None:
    return {}
  return {
    f'{_TRACKER}.{name}': np.asarray(getattr(norms, name))
    for name in ('total_weight', 'total_rejections')
  }


def _noisy(gradients: Sequence[Arrays]) -> set[str]:
  """Returns the theta paths of weights with very small gradients.

  Adam updates them as much as others, in the direction of noise.
  """
  found = set()
  for one in gradients:
    norms = {path: np.linalg.norm(g) for path, g in one.items()}
    least = 1e-4 * max(norms.values())
    found |= {path for path, norm in norms.items() if norm < least}
  return found


@functools.cache
def reported(name: str) -> dict[str, Any]:
  """Returns the report of a family, made once in a separate process."""
  done = forking.run(
    '-m',
    'tests.adaptors.bridge.family_parity',
    name,
    env=launching.environment(XLA_FLAGS=launching.flags_of_devices(8)),
    timeout=launching.PATIENCE_SECONDS,
  )
  assert done.returncode == 0, done.stderr[-6000:]
  return json.loads(done.stdout.splitlines()[-1])


def main():
  """Prints the report of the family on the command line."""
  print(json.dumps(report(sys.argv[1])))


def check(results: Mapping[str, Any]):
  """Fails if a difference in a family's report is too large."""
  partitioned = results['partitioned']
  assert partitioned['devices'] == 8
  for step in range(STEPS):
    where = f'step {step}'
    runs = {'partitioned', 'trained'} & set(results)
    losses = {f'loss {run}': results[run]['losses'][step] for run in runs}
    _check_all(losses, LOSS_TOLERANCE, where)
    _check_all(partitioned['gradients'][step], GRADIENT_TOLERANCE, where)
    _check_all(partitioned['statistics'][step], STATISTICS_TOLERANCE, where)
  if 'trained' in results:
    at_end = results['trained']
    _check_all(at_end['moves'], MOVES_TOLERANCE, 'the end')
    _check_all(at_end['statistics'], STATISTICS_TOLERANCE, 'the end')


def _check_all(errors: Mapping[str, float], tolerance: float, where: str):
  for path, error in errors.items():
    assert error <= tolerance, f'{path} at {where}: {error:.3g}'


if __name__ == '__main__':
  main()

"""Runs an experiment of a user: two steps here and in Lingvo.

Both start from the same weights. It goes the way of a run: the experiment, its
datasets, the program, the steps.
"""

import contextlib
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptors.bridge import layer as bridge_layer
from adaptors.bridge import model as bridge_model
from adaptors.bridge.functional import fed_task
from adaptors.experiments import lingvo_experiment, lingvo_multi_task
from adaptors.lingvo_parity.batches import nested
from adaptors.lingvo_registry.options import LingvoOptions
from pax_compat import base_layer, errors, learners
from pax_compat.configs import config_text
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import parity

STEPS = 2
TOLERANCE = 2e-5
# Of the largest change of a variable.
_NOISE = 1e-5


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came of an experiment.

  Attributes:
    kind: `native`, `mixed`, `bridged` or `refused`.
    message: of the error, if it is refused.
    seconds: of the processor, up to the first step, or the error.
  """

  kind: str
  message: str
  seconds: float


def run(made: Any) -> Outcome:
  """Trains an experiment and holds it against Lingvo.

  Args:
    made: an `experiments.Experiment`.

  Raises:
    AssertionError: a number differs from Lingvo's.
    Exception: anything but a UserError: it crashed.
  """
  start = time.process_time()
  try:
    kind, found = _attempt(made)
  except errors.UserError as e:
    return Outcome('refused', str(e), time.process_time() - start)
  seconds = time.process_time() - start
  if found is not None and not made.is_random:
    _hold(*found)
  return Outcome(kind, '', seconds)


def _attempt(made: Any):
  """Returns the kind, and a task with its batches; None for several tasks."""
  several = hasattr(made.registered, 'Task') is False
  cls = lingvo_experiment.LingvoExperiment
  if several:
    cls = lingvo_multi_task.LingvoMultiTaskExperiment
  experiment = cls(
    name='users.Own', model_params=made.registered, options=LingvoOptions()
  )
  config = experiment.task()
  kind = _kind(config)
  datasets = experiment.datasets()
  if several:
    return kind, None
  batches = made.batches or _read(datasets[0])
  if made.evaluates:
    [held_out] = [d for d in datasets if d.name == made.evaluates]
    _evaluated_rows(held_out)
  translated = experiment.translated
  own = Ours(translated, batches[0])
  own.step_once(batches[0])
  return kind, (experiment.task_params(), own, batches)


def _kind(config: Any) -> str:
  if config.model.cls is bridge_model.BridgedModel:
    return 'bridged'
  bridged = bridge_layer.BridgedLayer, bridge_model.BridgedModel
  text = config_text.to_text(config)
  return 'mixed' if any(c.__name__ in text for c in bridged) else 'native'


def _read(config: Any) -> list[dict[str, np.ndarray]]:
  """Returns the first batches of a dataset, by dotted name."""
  data = config.Instantiate()
  with contextlib.closing(data):
    batches = [data.get_next() for _ in range(2 * STEPS)]
  return [
    {path: x for path, x in batch.flatten_items() if x.dtype.kind != 'S'}
    for batch in batches
  ]


def _evaluated_rows(config: Any) -> int:
  data = config.Instantiate()
  with contextlib.closing(data):
    count = 0
    with contextlib.suppress(StopIteration):
      while True:
        count += int(data.get_next().eval_sample_weights.sum())
  return count


class Ours:
  """A task in JAX."""

  def __init__(self, translated: Any, batch: dict[str, np.ndarray]):
    """Traces it."""
    self.translated = translated
    config = translated.config.clone()
    # Unused norms take seconds to compile.
    config.train.learner.set(grad_norm_summary=False, var_norm_summary=False)
    self.program = program.create(
      config.Instantiate(),
      partitioning.create_mesh(None, None),
      nested(batch),
    )

  def state(self, first: dict[str, np.ndarray] | None) -> program.TrainState:
    """Returns a state with Lingvo's variables; None for those of its own."""
    known = {}
    if first is not None:
      known = learners.by_path(self.translated.variables.to_jax(first))
    abstract = self.program.abstract_state

    def value(path, like):
      found = known.get(learners.path_name(path))
      if found is None:
        found = np.zeros(like.shape, like.dtype)
      assert np.shape(found) == like.shape, path
      return jax.device_put(jnp.array(found, like.dtype), like.sharding)

    mdl_vars = {
      name: jax.tree_util.tree_map_with_path(value, tree)
      for name, tree in abstract.mdl_vars.items()
    }
    weights = jax.tree.map(jnp.copy, mdl_vars[base_layer.PARAMS])
    state = program.TrainState(
      step=jnp.zeros([], jnp.int32),
      mdl_vars=mdl_vars,
      opt_state=self.program.learner.init(
        weights, weight_metas=self.program.weight_metas
      ),
    )
    return jax.tree.map(
      lambda x, like: jax.device_put(x, like.sharding), state, abstract
    )

  def step_once(self, batch: dict[str, np.ndarray]):
    """Takes a step, from zeros."""
    self.program.train_step(self.state(None), nested(batch))

  def steps(self, first, batches):
    """Yields the loss of each step, and the variables by theta path after."""
    state = self.state(first)
    for batch in batches:
      state, outputs = self.program.train_step(state, nested(batch))
      found = {}
      for tree in state.mdl_vars.values():
        found |= learners.by_path(tree)
      yield float(outputs['loss']), self.translated.variables.to_lingvo(found)


def _run_lingvo(task_params: Any, batches):
  """Returns the variables before all steps and after each one, and losses."""
  variables, losses = [], []
  with fed_task.build(task_params, batches[0], optimized=False) as made:
    made.start()
    variables.append(made.session.run(made.variables))
    for batch in batches:
      loss, _ = made.session.run(
        [made.task.loss, made.task.train_op], made.feed_dict(batch)
      )
      losses.append(float(loss))
      variables.append(made.session.run(made.variables))
  return variables, losses


def _hold(task_params: Any, ours: Ours, batches):
  """Fails where losses or variables differ from Lingvo's after some step."""
  batches = batches[:STEPS]
  variables, losses = _run_lingvo(task_params, batches)
  moves = {
    path: np.abs(variables[-1][path] - first).max()
    for path, first in variables[0].items()
  }
  # What does not matter to a loss is moved by rounding errors only.
  least = max(moves.values()) * _NOISE
  moved = {path for path in moves if moves[path] > least}
  for step, (loss, found) in enumerate(ours.steps(variables[0], batches)):
    where = f'step {step}'
    np.testing.assert_allclose(loss, losses[step], 1e-5, err_msg=where)
    for path in moved:
      want = variables[step + 1][path]
      parity.assert_close(found[path], want, TOLERANCE, f'{path}, {where}')

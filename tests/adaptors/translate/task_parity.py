"""Holds a whole task against Lingvo: its loss, gradients, metrics and training.

Lingvo really runs, in separate graphs, with the same weights and batches.
"""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity.batches import nested
from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, learners
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import lingvo_training, parity

STEPS_TOLERANCE = 1e-4

# Of the names of metrics, not of paths.
_WITH_SLASHES = 'loss/regression', 'loss/classification', 'error/'
# Whether a theta path is that of a variance, which is positive.
_IS_VARIANCE = operator.methodcaller('endswith', 'moving_variance')


@dataclasses.dataclass
class Ours:
  """A task in JAX, ready to run.

  Attributes:
    translated: the task.
    program: of it.
    state: with the weights of Lingvo.
  """

  translated: task_translation.TranslatedTask
  program: program.TaskProgram
  state: program.TrainState

  @classmethod
  def create(
    cls, params, batch, weights, translate=task_translation.translate_task
  ) -> 'Ours':
    """Translates a task and gives it weights.

    Args:
      params: of Lingvo.
      batch: of which only the shapes matter.
      weights: by theta path.
      translate: (params, name) -> the task in JAX.
    """
    translated = translate(params, 'task')
    made = program.create(
      translated.config.Instantiate(),
      partitioning.create_mesh(None, None),
      nested(batch),
    )
    own = {
      name: jax.tree.map(jnp.asarray, some.to_jax(weights))
      for name, some in (
        (base_layer.PARAMS, _of(translated, True)),
        (base_layer.NON_TRAINABLE, _of(translated, False)),
      )
    }
    return cls(translated, made, _state(made, own, nested(batch)))

  def theta(self, params) -> dict[str, np.ndarray]:
    """Returns weights, or gradients by them, by theta path."""
    own = _of(self.translated, True)
    return own.to_lingvo(learners.by_path(params))

  def all_theta(self, mdl_vars) -> dict[str, np.ndarray]:
    """Returns all variables by theta path, moving statistics included."""
    others = mdl_vars.get(base_layer.NON_TRAINABLE, {})
    own = _of(self.translated, False)
    return self.theta(mdl_vars[base_layer.PARAMS]) | own.to_lingvo(
      learners.by_path(others)
    )

  def gradients(self, batch) -> dict[str, np.ndarray]:
    """Returns those of a training step's loss, by theta path."""
    found, _ = self.gradients_and_outputs(batch)
    return found

  def gradients_and_outputs(
    self, batch
  ) -> tuple[dict[str, np.ndarray], program.StepOutputs]:
    """Returns them with the outputs of the step."""

    def loss(params):
      variables = {**self.state.mdl_vars, base_layer.PARAMS: params}
      loss, outputs, *_ = self.program.forward(
        variables, nested(batch), jax.random.key(0)
      )
      return loss, outputs

    found, outputs = jax.jit(jax.grad(loss, has_aux=True))(
      self.state.mdl_vars[base_layer.PARAMS]
    )
    return self.theta(found), outputs

  def evaluate(self, batch) -> dict[str, tuple[float, float]]:
    """Returns the metrics of an evaluation, with their weights."""
    outputs = self.program.eval_step(self.state.mdl_vars, nested(batch))
    return {
      name: (float(value), float(weight))
      for name, (value, weight) in outputs.weighted.items()
    }


def _of(translated, is_trainable: bool):
  return translated.variables.only(is_trainable=is_trainable)


def _state(made, own, batch) -> program.TrainState:
  """Returns the initial state of a program, with other variables."""
  abstract = made.abstract_state
  own = {k: own[k] for k in abstract.mdl_vars}
  assert _shapes(own[base_layer.PARAMS]) == _shapes(
    abstract.mdl_vars[base_layer.PARAMS]
  )
  if _shapes(own) == _shapes(abstract.mdl_vars):
    # Without compiling the initializers of all variables.
    copies = jax.tree.map(jnp.copy, own)
    state = program.TrainState(
      step=jnp.zeros([], jnp.int32),
      mdl_vars=own,
      opt_state=made.learner.init(
        copies[base_layer.PARAMS],
        weight_metas=made.weight_metas,
        variables=copies,
      ),
    )
  else:  # Bridged layers have a step counter besides.
    state = made.init_state(batch)
    state = state.replace(mdl_vars=_updated(state.mdl_vars, own))
  # Placed as a step leaves them, or the first step is compiled by itself.
  return jax.tree.map(
    lambda x, like: jax.device_put(x, like.sharding), state, abstract
  )


def _shapes(tree):
  return jax.tree.map(jnp.shape, tree)


def _updated(tree, values):
  """Returns nested dicts with the leaves of `values` in place of their own."""
  if not isinstance(values, dict):
    return values
  return {**tree, **{k: _updated(tree[k], v) for k, v in values.items()}}


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """Lingvo's outputs for a batch at evaluation.

  Attributes:
    weights: the task's, by theta path.
    metrics: {name: (value, weight)}.
    gradients: of the loss, by theta path; empty if not asked for.
  """

  weights: dict[str, np.ndarray]
  metrics: dict[str, tuple[float, float]]
  gradients: dict[str, np.ndarray]


def evaluate_in_lingvo(
  params, batch, weights=None, *, static_shapes: bool = False
) -> Evaluated:
  """Evaluates a batch in Lingvo, with its weights, not averages of them.

  Args:
    params: of the task.
    batch: by dotted name.
    weights: by theta path; None takes random ones, and works out gradients.
    static_shapes: whether Lingvo needs the shapes of the batch.
  """
  tf = lingvo_runtime.module('lingvo.compat')
  params = params.Copy()
  params.train.ema_decay = 0.0
  with fed_task.build(
    params, batch, do_eval=True, static_shapes=static_shapes, optimized=False
  ) as made:
    variables = dict(made.task.vars.FlattenItems())
    # Those whose names are paths tell how experts fared, on a TPU.
    metrics = {
      k: [*v]
      for k, v in made.task.eval_metrics.items()
      if '/' not in k or k.startswith(_WITH_SLASHES)
    }
    metrics.pop('num_samples_in_batch', None)  # No task's own.
    gradients = {}
    if weights is None:
      trained = {path: v for path, v in variables.items() if v.trainable}
      found = tf.gradients(metrics['loss'][0], list(trained.values()))
      gradients = dict(zip(trained, found, strict=True))
      rng = np.random.default_rng(0)
      weights = {
        path: rng.normal(scale=0.3, size=v.shape).astype(np.float32)
        for path, v in variables.items()
      }
      for path in filter(_IS_VARIANCE, weights):
        weights[path] = np.abs(weights[path]) + 0.5
    made.start()
    for path, variable in variables.items():
      variable.load(weights[path], made.session)
    # Some weights are plain numbers.
    tensors = [x for v in metrics.values() for x in v if tf.is_tensor(x)]
    values, gradients = made.session.run(
      [tensors, _dense(tf, gradients)], made.feed_dict(batch)
    )
  outputs = dict(zip(map(id, tensors), values, strict=True))
  return Evaluated(
    weights,
    {
      k: tuple(float(outputs.get(id(x), x)) for x in v)
      for k, v in metrics.items()
    },
    gradients,
  )


def _dense(tf, gradients):
  return {path: tf.convert_to_tensor(g) for path, g in gradients.items()}


def check_metrics(ours: Ours, batch, evaluated: Evaluated):
  """Fails where the metrics of an evaluation differ, or their weights."""
  outputs = ours.evaluate(batch)
  for name, wanted in evaluated.metrics.items():
    for which, found, want in zip(
      ('value', 'weight'), outputs[name], wanted, strict=True
    ):
      what = f'{name} ({which})'
      parity.assert_close(found, want, parity.OUTPUT_TOLERANCE, what, 1e-6)


def check_evaluation(params, batch) -> tuple[Evaluated, Ours]:
  """Holds a task's metrics and gradients against Lingvo's, at evaluation.

  Args:
    params: of the task.
    batch: by dotted name.

  Returns:
    Lingvo's outputs, and our task.
  """
  evaluated = evaluate_in_lingvo(params, batch)
  ours = Ours.create(params, batch, evaluated.weights)
  check_metrics(ours, batch, evaluated)
  with base_layer.eval_mode(True):
    parity.assert_gradients_close(ours.gradients(batch), evaluated.gradients)
  return evaluated, ours


def check_first(
  params,
  batches,
  *,
  expected=lambda metrics: {},
  static_shapes: bool = False,
  translate=task_translation.translate_task,
) -> tuple[lingvo_training.Trained, Ours]:
  """Holds a training step's gradients, and an evaluation, against Lingvo's.

  For settings of a model: what a learner makes of gradients is that of other
  tests.

  Args:
    params: as of `check`.
    batches: of Lingvo's steps; only the first one is compared.
    expected: as of `check`.
    static_shapes: as of `check`.
    translate: as of `Ours.create`.

  Returns:
    What Lingvo did, and our task.
  """
  static = dict(static_shapes=static_shapes)
  theirs = lingvo_training.train(params, batches, **static)
  ours = Ours.create(params, batches[0], theirs.first, translate)
  parity.assert_gradients_close(ours.gradients(batches[0]), theirs.gradients)
  evaluated = evaluate_in_lingvo(params, batches[0], theirs.first, **static)
  evaluated.metrics.update(expected(evaluated.metrics))
  check_metrics(ours, batches[0], evaluated)
  return theirs, ours


def check(
  params,
  batches,
  *,
  without_gradient: str = '',
  expected=lambda metrics: {},
  static_shapes: bool = False,
  translate=task_translation.translate_task,
) -> lingvo_training.Trained:
  """Holds a task against Lingvo's, over a training step on each batch.

  Args:
    params: of Lingvo.
    batches: by dotted name; the first one is evaluated, too.
    without_gradient: the end of the theta paths of weights whose gradient is 0
      but for rounding errors, as that of a bias of keys, which add the same to
      all logits; '' for none. Adam's updates of them are random.
    expected: from Lingvo's metrics of the first batch to those expected
      here, where they differ.
    static_shapes: whether Lingvo needs the shapes of the batches.
    translate: as of `Ours.create`.

  Returns:
    What Lingvo did.
  """
  theirs, ours = check_first(
    params,
    batches,
    expected=expected,
    static_shapes=static_shapes,
    translate=translate,
  )
  state, made = ours.state, ours.program
  for step, batch in enumerate(batches):
    state, outputs = made.train_step(state, nested(batch))
    first = step == 0
    for name, wanted, tolerance in (
      ('loss', theirs.losses, 1e-5 if first else STEPS_TOLERANCE),
      ('learning/lr', theirs.learning_rates, 1e-6),
      ('learning/raw_grad_norm', theirs.grad_norms, STEPS_TOLERANCE),
    ):
      what = f'{name} of step {step}'
      parity.assert_close(
        outputs[name], np.float32(wanted[step]), tolerance, what
      )
  last = ours.all_theta(state.mdl_vars)
  for path, value in theirs.last.items():
    if path.startswith('learners['):
      continue  # State of the learner, such as gradient norms.
    if without_gradient and path.endswith(without_gradient):
      # Rounding errors are those of the largest gradients.
      largest = max(np.abs(g).max() for g in theirs.gradients.values())
      found = np.abs(theirs.gradients[path]).max()
      assert found < 1e-6 * max(1, largest), path
      continue
    parity.assert_close(last[path], value, STEPS_TOLERANCE, path)
  return theirs

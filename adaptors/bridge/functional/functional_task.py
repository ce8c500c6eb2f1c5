"""A Lingvo task as functions that TensorFlow compiles and JAX calls.

Lingvo's own FProp computes the loss, and TensorFlow's tape its gradients. All
that a task keeps goes in and comes out: weights and other variables by theta
path, the batch, the step and a seed of the random numbers.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task, structures, variables
from adaptors.bridge.ops import compilable, xla_ops
from adaptors.params import params_trees
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What a task computes of a batch: tensors, or arrays.

  Attributes:
    metrics: {name: (value, weight)}.
    per_example: arrays that say something about each example, by name.
    updates: next values of variables that Lingvo assigned to, by theta path.
  """

  metrics: dict[str, tuple[Any, Any]]
  per_example: dict[str, Any]
  updates: dict[str, Any]

  def as_tuple(self) -> tuple[dict, dict, dict]:
    return self.metrics, self.per_example, self.updates


@dataclasses.dataclass(frozen=True)
class Trace:
  """What is found out about a task by tracing it.

  Attributes:
    sparse_tables: theta paths of the variables whose gradient TensorFlow keeps
      for the rows only that were looked up.
    unused: those of the variables that no loss depends on: Lingvo's learners
      leave them alone.
    has_bfloat16: whether it computes anything in bfloat16.
  """

  sparse_tables: tuple[str, ...]
  unused: tuple[str, ...]
  has_bfloat16: bool


class FunctionalTask:
  """A Lingvo task whose FProp is a function.

  Attributes:
    task: the Lingvo task.
    variables: stand-ins for its variables, by theta path, in Lingvo's order.
    do_eval: whether it is one for evaluation.
    told: what was replaced, when last traced, so that it can be compiled.
  """

  def __init__(self, params: Any, *, do_eval: bool, xla_device: str):
    """Builds the task; nothing is allocated for its variables.

    Args:
      params: of the task, with its input; they are not changed.
      do_eval: whether layers behave as in evaluation.
      xla_device: 'tpu' for static shapes, or 'cpu'; see
        `lingvo_runtime.cluster`.

    Raises:
      UserError: the task cannot be built so.
    """
    self.do_eval = do_eval
    self.told: list[xla_ops.Replacement] = []
    self._xla_device = xla_device
    params = on_one_device(params)
    # It says how much is evaluated, which the trainer decides; some leave it
    # to Lingvo's runners, and fail without.
    params.eval.samples_per_summary = params.eval.samples_per_summary or 1
    self.task = self._built(params)
    self._check_layers()
    self.variables = variables.of(self.task)
    self._compiled = {}
    self._unused = frozenset()

  def _built(self, params):
    """Returns the task, with an input that is as good as its own.

    Some inputs refuse to be built in eager mode, or are slow to: those read
    their files. A task asks its input for little, its tokenizer most of all.
    """
    with self._in_lingvo(), variables.creating(), unverified():
      try:
        return params.Copy().Instantiate()
      except Exception as error:
        if params.input is None:
          raise
        first = error
    params.input = fed_task.fed_input(params.input, {})
    with self._in_lingvo(), variables.creating(), unverified():
      try:
        return params.Instantiate()
      except Exception:
        raise first from None

  def _check_layers(self):
    base = lingvo_runtime.module('lingvo.core.base_layer').BaseLayer
    for layer in variables.layers_of(self.task):
      if type(layer).PostEmaUpdate is not base.PostEmaUpdate:
        raise errors.UserError(
          f'{layer.path} is a {type(layer).__name__}, which overrides'
          ' PostEmaUpdate; a layer of a bridged task must not'
        )

  @property
  def trained(self) -> list[str]:
    """Theta paths of the variables that learners may change."""
    return [path for path, v in self.variables.items() if v.trainable]

  def forward(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> tuple[dict, dict, dict]:
    """Computes a batch.

    Args:
      values: of all variables, tensors by theta path.
      batch: nested dicts and lists of tensors.
      step: [], how many steps were made.
      seed: [2], int32, of random numbers.

    Returns:
      Metrics, arrays of each example and updates; see `Outputs`.
    """
    return self._run((), values, batch, step, seed)

  def with_gradients(
    self,
    losses: Sequence[str],
    values: Mapping[str, Any],
    batch: Any,
    step: Any,
    seed: Any,
  ) -> tuple[tuple, dict, dict]:
    """Computes a batch and the gradients of losses.

    Args:
      losses: names of metrics, such as `loss`.
      values: see `forward`.
      batch: see `forward`.
      step: see `forward`.
      seed: see `forward`.

    Returns:
      What `forward` returns; for each loss the gradients by theta path; and
      for each loss, of the variables whose gradient TensorFlow has for the rows
      only that were looked up, (how often each row was, the sum of squares of
      the rows' gradients) by theta path.
    """
    return self._run(tuple(losses), values, batch, step, seed)

  def decode(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> Any:
    """Returns what the task's `Decode` does, which XLA may not compile.

    Args:
      values: see `forward`.
      batch: see `forward`.
      step: see `forward`.
      seed: see `forward`.
    """
    with (
      self._in_lingvo(),
      xla_ops.replaced(seed),
      self._bound(values, step),
    ):
      return dict(self.task.Decode(structures.in_lingvo(batch)))

  def trace(self, losses: Sequence[str], batch: Any) -> Trace:
    """Traces the function with gradients; nothing is computed.

    Args:
      losses: see `with_gradients`.
      batch: nested dicts and lists of what has a shape and a dtype.

    Raises:
      UserError: it has ops that XLA does not compile, or a task may not do what
        it does.
    """
    tf = lingvo_runtime.module('tensorflow')
    traced = self._function(tuple(losses)).get_concrete_function(
      {k: structures.spec_of(v) for k, v in self.variables.items()},
      structures.specs_of(batch),
      tf.TensorSpec([], tf.int32),
      tf.TensorSpec([2], tf.int32),
    )
    self._check_captures(traced)
    *_, facts = traced.structured_outputs
    found = {path for of_loss in facts.values() for path in of_loss}
    return Trace(
      sparse_tables=tuple(sorted(found - self._unused)),
      unused=tuple(sorted(self._unused)),
      has_bfloat16=structures.has_bfloat16(traced),
    )

  def _run(self, losses, values, batch, step, seed):
    function = self._function(losses)
    arguments = dict(values), structures.plain(batch), step, seed
    self._check_captures(function.get_concrete_function(*arguments))
    return function(*arguments)

  def _function(self, losses: tuple[str, ...]):
    """Returns the `tf.function` with gradients of these losses.

    It is traced once for each shape of a batch.
    """
    tf = lingvo_runtime.module('tensorflow')
    if losses not in self._compiled:
      traced = compilable.compilable(functools.partial(self._traced, losses))
      self._compiled[losses] = tf.function(traced, autograph=False)
    return self._compiled[losses]

  def _check_captures(self, traced):
    """Raises a UserError where a function reads what is not given to it."""
    tf = lingvo_runtime.module('tensorflow')
    for tensor in traced.captured_inputs:
      if tensor.dtype == tf.resource:
        names = [v.name for v in traced.variables if v.handle is tensor]
        raise errors.UserError(
          f'{self.task.params.name} uses {", ".join(names) or tensor.name},'
          " which was not created by a layer's CreateVariable; expected"
          " Lingvo's own way"
        )
      value = tensor.numpy() if hasattr(tensor, 'numpy') else None
      if tensor.dtype.is_floating and np.any(value != value):
        raise errors.UserError(
          f'{self.task.params.name} computes with what a layer has kept of a'
          " variable's value while it was built; expected that layers read"
          ' variables in FProp only'
        )

  def _traced(self, losses, values, batch, step, seed):
    tf = lingvo_runtime.module('tensorflow')
    trained = self.trained if losses else ()
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._in_lingvo())
      # The gradients of what was replaced are taken while it is.
      told = stack.enter_context(xla_ops.replaced(seed))
      tape = stack.enter_context(tf.GradientTape(persistent=len(losses) > 1))
      for path in trained:
        tape.watch(values[path])
      outputs = self._computed(values, batch, step)
      self.told = list(told)
      if not losses:
        return outputs.as_tuple()
      found = {
        name: self._gradients(tape, outputs.metrics, name, values)
        for name in losses
      }
    self._unused = frozenset.intersection(
      *(
        frozenset(k for k, g in one.items() if g is None)
        for one in found.values()
      )
    )
    dense = {name: self._dense(one, values) for name, one in found.items()}
    facts = {name: self._row_facts(one) for name, one in found.items()}
    return outputs.as_tuple(), dense, facts

  def _computed(self, values, batch, step) -> Outputs:
    task = self.task
    with self._bound(values, step) as bound:
      metrics, per_example = task.FPropTower(
        task.theta, structures.in_lingvo(batch)
      )
      if not self.do_eval:
        self._update_after_step(bound)
        if task.params.task_global_step:
          bound[self._own_step].assign_add(1)
      updates = {
        path: v.assigned for path, v in bound.items() if v.assigned is not None
      }
    self._check_updates(updates)
    return Outputs(
      metrics=structures.metrics(metrics),
      per_example=(
        structures.of_each_example(per_example) if self.do_eval else {}
      ),
      updates=updates,
    )

  @contextlib.contextmanager
  def _bound(self, values, step) -> Iterator[dict[str, Any]]:
    """Lets the task compute with these values, at a step."""
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    task = self.task
    if task.params.task_global_step:
      step = values[self._own_step]
    with (
      variables.bound(task, values) as bound,
      tf.name_scope(task.params.name),
      py_utils.TaskCallScope(task),
      _at_step(task, tf.cast(step, tf.int64)),
    ):
      py_utils.ResetStepSeed()
      yield bound

  @property
  def _own_step(self) -> str:
    """The theta path of the step of a task that counts its own ones."""
    return f'{self.task.params.name}_global_step'

  def _update_after_step(self, bound):
    """Runs what layers do after a training step, before the next one.

    In Lingvo they see the weights that the step has left; here they see those
    before it.
    """
    for variable in bound.values():
      variable.forget_reads()
    self.task.PostTrainingStepUpdate()
    for path, variable in bound.items():
      if variable.trainable and variable.was_read:
        logging.warning(
          '%s: PostTrainingStepUpdate reads the weight %s, and gets its value'
          ' before the step, where Lingvo gives it that after',
          self.task.params.name,
          path,
        )

  def _check_updates(self, updates):
    for path in updates:
      if self.variables[path].trainable:
        raise errors.UserError(
          f'{self.task.params.name} assigns to the weight {path}, which'
          ' learners train too; a bridged task may assign to variables that'
          ' are not trainable'
        )

  def _gradients(self, tape, metrics, name, values):
    """Returns the gradients of a loss as TensorFlow has them."""
    if name not in metrics:
      raise errors.UserError(
        f'the loss {name!r} is none of the metrics of {self.task.params.name}'
        + errors.did_you_mean(name, metrics)
      )
    sources = {path: values[path] for path in self.trained}
    return tape.gradient(metrics[name][0], sources)

  def _dense(self, gradients, values):
    tf = lingvo_runtime.module('tensorflow')
    return {
      path: tf.zeros_like(values[path])
      if g is None
      else tf.convert_to_tensor(g)
      for path, g in gradients.items()
    }

  def _row_facts(self, gradients):
    """Returns facts about gradients that are sparse, or not there at all."""
    tf = lingvo_runtime.module('tensorflow')
    facts = {}
    for path, gradient in gradients.items():
      shape = self.variables[path].shape
      if isinstance(gradient, tf.IndexedSlices):
        facts[path] = structures.row_facts(gradient, shape[0])
      elif gradient is None and shape.rank:
        facts[path] = structures.no_row_facts(shape[0])
    return facts

  @contextlib.contextmanager
  def _in_lingvo(self) -> Iterator[None]:
    """Enters what tasks are built and called in."""
    with (
      lingvo_runtime.eager_flag(True),
      lingvo_runtime.cluster(do_eval=self.do_eval, xla_device=self._xla_device),
    ):
      yield


def on_one_device(params: Any) -> Any:
  """Returns a copy of Params without meshes of several devices.

  How weights are split over devices changes no number, and Lingvo cannot split
  any in eager mode.
  """
  params = params.Copy()
  for node in params_trees.all_params(params):
    mesh = params_trees.get(node, 'device_mesh')
    if mesh is not None:
      node.device_mesh = np.zeros([1] * np.ndim(mesh), int)
  return params


@contextlib.contextmanager
def _at_step(task: Any, step: Any) -> Iterator[None]:
  """Lets all that asks for the global step, or its variable, get `step`."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  variable, get = task._global_step_var, py_utils.GetOrCreateGlobalStepVar
  task._global_step_var = step
  py_utils.GetOrCreateGlobalStepVar = lambda: step
  try:
    with py_utils.GlobalStepContext(step):
      yield
  finally:
    task._global_step_var = variable
    py_utils.GetOrCreateGlobalStepVar = get


@contextlib.contextmanager
def unverified() -> Iterator[None]:
  """Keeps layers from reading variables at the end of being built.

  They compare theta with the variables, which casts those that have no value.
  """
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')
  verify = base_layer.BaseLayer._VerifyVarsAndTheta
  base_layer.BaseLayer._VerifyVarsAndTheta = lambda self: None
  try:
    yield
  finally:
    base_layer.BaseLayer._VerifyVarsAndTheta = verify

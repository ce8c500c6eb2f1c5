"""A Lingvo task as pure functions that TensorFlow compiles and JAX calls.

Lingvo's FProp computes the loss, and TensorFlow's tape its gradients. All state
is passed in and returned: variables by theta path, the batch, the step and the
seed of random numbers.
"""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional import (
  contexts,
  fed_task,
  modules,
  structures,
  variables,
)
from adaptors.bridge.ops import compilable, xla_ops
from adaptors.params import params_trees
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Outputs:
  """A task's outputs for a batch: tensors, or arrays.

  Attributes:
    metrics: {name: (value, weight)}.
    per_example: per-example outputs by name.
    updates: new values of variables that Lingvo assigned to, by theta path.
  """

  metrics: dict[str, tuple[Any, Any]]
  per_example: dict[str, Any]
  updates: dict[str, Any]

  def as_tuple(self) -> tuple[dict, dict, dict]:
    return self.metrics, self.per_example, self.updates


@dataclasses.dataclass(frozen=True)
class Trace:
  """Properties of a task found by tracing it.

  Attributes:
    sparse_tables: theta paths of the variables with sparse gradients
      (`tf.IndexedSlices`).
    unused: theta paths of the variables that no loss depends on; Lingvo's
      learners do not update them.
    has_bfloat16: whether anything is computed in bfloat16.
  """

  sparse_tables: tuple[str, ...]
  unused: tuple[str, ...]
  has_bfloat16: bool


class FunctionalTask:
  """A Lingvo task whose FProp is a pure function.

  Attributes:
    task: the Lingvo task.
    variables: stand-ins for its variables by theta path, in Lingvo's order.
    do_eval: whether it is in evaluation mode.
    replacements: ops replaced in the last trace, so that XLA can compile it.
    loss_of: losses of variables by theta path, where it is not the first of
      several. Gradients of other losses are zero, as of no effect.
    updates_by_weights: whether, as far as it was traced,
      `PostTrainingStepUpdate` reads weights; then `after_update` calls it.
  """

  loss_of: Mapping[str, str] = types.MappingProxyType({})
  updates_by_weights = False

  def __init__(
    self,
    params: Any,
    *,
    do_eval: bool,
    xla_device: str,
    build: Callable[[Any], Any] | None = None,
  ):
    """Builds the task without allocating its variables.

    Args:
      params: of the task, with its input; not modified.
      do_eval: whether layers are in evaluation mode.
      xla_device: 'tpu' for static shapes, or 'cpu'; see
        `lingvo_runtime.cluster`.
      build: builds the task by its Params; None to instantiate them.

    Raises:
      UserError: the task cannot be bridged.
    """
    self._build = build or (lambda params: params.Instantiate())
    self.do_eval = do_eval
    self.replacements: list[xla_ops.Replacement] = []
    self._xla_device = xla_device
    params = on_one_device(params)
    without_sample_limits(params)
    self.task = self._built(params)
    self._check_layers()
    self.variables = variables.of(self.task)
    self._compiled = {}
    self._after = None
    self._unused = frozenset()

  def _built(self, params):
    """Returns the task, with its input or, if that fails, an equivalent one.

    Some inputs cannot be built in eager mode. A task needs little of its input,
    mostly the tokenizer.
    """
    with self._in_lingvo(), contexts.creating():
      try:
        return self._build(params.Copy())
      except Exception as error:
        if params.input is None:
          raise
        first = error
    params.input = fed_task.fed_input(params.input, {})
    with self._in_lingvo(), contexts.creating():
      try:
        return self._build(params)
      except Exception:
        raise first from None

  def _check_layers(self):
    base = lingvo_runtime.module('lingvo.core.base_layer').BaseLayer
    for layer in variables.layers_of(self.task):
      if type(layer).PostEmaUpdate is not base.PostEmaUpdate:
        raise errors.UserError(
          f'{layer.path} is a {type(layer).__name__}, which overrides'
          ' PostEmaUpdate, which a layer of a bridged task must not'
        )

  @property
  def trained(self) -> list[str]:
    """Theta paths of the trainable variables."""
    return [path for path, v in self.variables.items() if v.trainable]

  def trained_by_bprop(self) -> frozenset[str]:
    """Returns the theta paths of the variables that `BProp` trains.

    Raises:
      UserError: a task's own `BProp` does more than to select variables.
    """
    task, found = self.task, []
    with self._in_lingvo(), contexts.recording(task, found) as before:
      try:
        task.BProp()
      except Exception as error:
        raise self._refused_bprop(
          f'it fails without a graph: {errors.with_location(error, brief=True)}'
        ) from error
      changed = [
        name
        for name, value in vars(task).items()
        if name not in before or before[name] is not value
      ]
    if changed:
      raise self._refused_bprop(f'it sets {", ".join(changed)}')
    if len(found) != 1:
      raise self._refused_bprop(f'it makes {len(found)} such calls')
    trained = {id(variable) for variable in found[0].Flatten()}
    return frozenset(
      path
      for path, variable in self.variables.items()
      if variable.trainable and id(variable) in trained
    )

  def _refused_bprop(self, why: str) -> errors.UserError:
    return errors.UserError(
      f'{self.task.params.name}: {type(self.task).__name__}.BProp is not'
      f' supported: {why}; expected one call of _BPropForVariables(variables)'
      ' and nothing else'
    )

  def forward(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> tuple[dict, dict, dict]:
    """Computes a batch.

    Args:
      values: of all variables, tensors by theta path.
      batch: nested dicts and lists of tensors.
      step: [], number of steps.
      seed: [2], int32, of random numbers.

    Returns:
      Metrics, per-example outputs and updates; see `Outputs`.
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
      The results of `forward`; for each loss the gradients by theta path; and
      for each loss the row statistics of sparse gradients by theta path:
      (number of lookups of each row, sum of squares of the slices).
    """
    return self._run(tuple(losses), values, batch, step, seed)

  def after_update(
    self,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    batch: Any,
    step: Any,
    seed: Any,
  ) -> dict:
    """Returns the updates of `PostTrainingStepUpdate`, by theta path.

    It is only needed if `updates_by_weights`.

    Args:
      before: all variables before the step, tensors by theta path.
      after: weights that learners have updated, and variables that `forward`
        has; accumulators of layers are recomputed, if they are used.
      batch: see `forward`.
      step: see `forward`.
      seed: see `forward`.
    """
    if self._after is None:
      tf = lingvo_runtime.module('tensorflow')
      traced = compilable.compilable(self._traced_after)
      self._after = tf.function(traced, autograph=False)
    arguments = dict(before), dict(after), structures.plain(batch), step, seed
    self._check_captures(self._after.get_concrete_function(*arguments))
    return self._after(*arguments)

  def decode(
    self, values: Mapping[str, Any], batch: Any, step: Any, seed: Any
  ) -> Any:
    """Returns the outputs of `Decode`, which XLA may not compile.

    They are of the type that the task returns, a dict or a NestedMap.

    Args:
      values: see `forward`.
      batch: see `forward`.
      step: see `forward`.
      seed: see `forward`.
    """
    with (
      self._in_lingvo(),
      xla_ops.replaced(seed),
      modules.holding(self._modules, values),
      self._bound(values, step),
    ):
      return self.task.Decode(structures.in_lingvo(batch))

  def decode_found(self, found: Mapping[str, Any], batch: Any) -> Any:
    """Returns the outputs of `Decode` for given hypotheses.

    Args:
      found: the hypotheses; see `contexts.searched`.
      batch: see `forward`.
    """
    with self._in_lingvo(), contexts.searched(self.task, found):
      return self.task.Decode(structures.in_lingvo(batch))

  def trace(self, losses: Sequence[str], batch: Any) -> Trace:
    """Traces the function with gradients without computing it.

    Args:
      losses: see `with_gradients`.
      batch: nested dicts and lists of arrays or their specs.

    Raises:
      UserError: it has ops that XLA does not compile, or does something that a
        bridged task must not do.
    """
    tf = lingvo_runtime.module('tensorflow')
    traced = self._function(tuple(losses)).get_concrete_function(
      {k: structures.spec_of(v) for k, v in self.variables.items()},
      structures.specs_of(batch),
      tf.TensorSpec([], tf.int32),
      tf.TensorSpec([2], tf.int32),
    )
    self._check_captures(traced)
    *_, statistics = traced.structured_outputs
    found = {path for of_loss in statistics.values() for path in of_loss}
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
    """Returns the `tf.function` with gradients of these losses."""
    tf = lingvo_runtime.module('tensorflow')
    if losses not in self._compiled:
      traced = compilable.compilable(functools.partial(self._traced, losses))
      traced = functools.partial(self._with_modules, traced, bool(losses))
      self._compiled[losses] = tf.function(traced, autograph=False)
    return self._compiled[losses]

  def _with_modules(self, traced, differentiates, values, *rest):
    """Calls a traced function; variables of modules have their values."""
    with modules.holding(self._modules, values):
      result = traced(values, *rest)
      _, _, updates = result[0] if differentiates else result
      updates.update(self._updates_of_modules())
    return result

  def _updates_of_modules(self) -> dict[str, Any]:
    """Returns what modules assign to their variables in training."""
    if self.do_eval:
      return {}
    tf = lingvo_runtime.module('tensorflow')
    return {
      path: tf.identity(variable.actual)
      for path, variable in self._modules.items()
      if not variable.trainable
    }

  @functools.cached_property
  def _modules(self) -> dict[str, modules.ModuleVariable]:
    """The variables of modules, by theta path."""
    return modules.of(self.variables)

  def _check_captures(self, traced):
    """Raises a UserError if a function captures variables or their values."""
    tf = lingvo_runtime.module('tensorflow')
    known = [v.actual.handle for v in self._modules.values()]
    for tensor in traced.captured_inputs:
      if any(tensor is handle for handle in known):
        continue
      if tensor.dtype == tf.resource:
        names = [v.name for v in traced.variables if v.handle is tensor]
        raise errors.UserError(
          f'{self.task.params.name} uses {", ".join(names) or tensor.name},'
          ' which was not created by CreateVariable of a layer; expected all'
          ' variables to be created so'
        )
      value = tensor.numpy() if hasattr(tensor, 'numpy') else None
      if tensor.dtype.is_floating and np.any(value != value):
        raise errors.UserError(
          f'{self.task.params.name} uses the value of a variable that a layer'
          ' has read while it was built; expected layers to read variables in'
          ' FProp only'
        )

  def _traced(self, losses, values, batch, step, seed):
    tf = lingvo_runtime.module('tensorflow')
    trained = self.trained if losses else ()
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._in_lingvo())
      # Gradients are also computed with the replaced ops.
      replacements = stack.enter_context(xla_ops.replaced(seed))
      tape = stack.enter_context(tf.GradientTape(persistent=len(losses) > 1))
      for path in trained:
        tape.watch(self._source(path, values))
      outputs = self._computed(values, batch, step)
      self.replacements = list(replacements)
      if not losses:
        return outputs.as_tuple()
      found = {
        name: self._gradients(tape, outputs.metrics, name, values)
        for name in losses
      }
    self._unused = self._without_gradient(found)
    found = {name: self._own(name, one, losses) for name, one in found.items()}
    dense = {name: self._dense(one, values) for name, one in found.items()}
    statistics = {
      name: self._row_statistics(
        {p: g for p, g in one.items() if self._is_own(name, p, losses)}
      )
      for name, one in found.items()
    }
    return outputs.as_tuple(), dense, statistics

  def _traced_after(self, before, after, batch, step, seed):
    task = self.task
    with (
      self._in_lingvo(),
      xla_ops.replaced(seed),
      modules.holding(self._modules, before),
      self._bound(before, step) as bound,
    ):
      task.FPropTower(task.theta, structures.in_lingvo(batch))
      if task.params.task_global_step:  # It counts the step afterwards.
        after = {**after, self._own_step: before[self._own_step]}
      variables.rebind(task, bound, after)
      task.PostTrainingStepUpdate()
      updates = {
        path: v.assigned for path, v in bound.items() if v.assigned is not None
      }
    self._check_updates(updates)
    return updates

  def _without_gradient(self, found) -> frozenset[str]:
    """Returns the paths of variables that their losses do not depend on.

    Args:
      found: the gradients by theta path, by loss.
    """
    losses = tuple(found)
    return frozenset(
      path
      for path in self.trained
      if all(
        one[path] is None
        for name, one in found.items()
        if self._is_own(name, path, losses)
      )
    )

  def _own(self, loss: str, gradients, losses):
    """Returns gradients, those of variables with another loss as None."""
    return {
      path: g if self._is_own(loss, path, losses) else None
      for path, g in gradients.items()
    }

  def _is_own(self, loss: str, path: str, losses) -> bool:
    """Whether a variable may have gradients of a loss.

    Without any `loss_of`, it may have those of all.
    """
    if not self.loss_of:
      return True
    return self.loss_of.get(path, losses[0]) == loss

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
      per_example=structures.per_example(per_example) if self.do_eval else {},
      updates=updates,
    )

  @contextlib.contextmanager
  def _bound(self, values, step) -> Iterator[dict[str, Any]]:
    """Binds the task's variables to values, and its global step."""
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    task = self.task
    if task.params.task_global_step:
      step = values[self._own_step]
    with (
      variables.bound(task, values) as bound,
      tf.name_scope(task.params.name),
      py_utils.TaskCallScope(task),
      contexts.at_step(task, tf.cast(step, tf.int64)),
    ):
      py_utils.ResetStepSeed()
      yield bound

  @property
  def _own_step(self) -> str:
    """The theta path of the step counter of a task with `task_global_step`."""
    return f'{self.task.params.name}_global_step'

  def _update_after_step(self, bound):
    """Calls `PostTrainingStepUpdate` of the layers.

    In Lingvo they see the weights after the step, here those before it. If they
    read any, it has no effect: `after_update` calls it later.
    """
    before = {path: variable.state for path, variable in bound.items()}
    for variable in bound.values():
      variable.forget_reads()
    self.task.PostTrainingStepUpdate()
    read = [p for p, v in bound.items() if v.trainable and v.was_read]
    self.updates_by_weights = bool(read)
    if read:
      for path, variable in bound.items():
        variable.state = before[path]

  def _check_updates(self, updates):
    for path in updates:
      if self.variables[path].trainable:
        raise errors.UserError(
          f'{self.task.params.name} assigns to the weight {path}, which'
          ' learners train too; expected assignments to non-trainable variables'
          ' only'
        )

  def _gradients(self, tape, metrics, name, values):
    """Returns the gradients of a loss, dense, sparse or None."""
    if name not in metrics:
      raise errors.UserError(
        f'the loss {name!r} is not a metric of {self.task.params.name}'
        + errors.did_you_mean(name, metrics)
      )
    sources = {path: self._source(path, values) for path in self.trained}
    return tape.gradient(metrics[name][0], sources)

  def _source(self, path: str, values) -> Any:
    """Returns what is differentiated by for a variable."""
    own = self._modules.get(path)
    return values[path] if own is None else own.actual

  def _dense(self, gradients, values):
    tf = lingvo_runtime.module('tensorflow')
    return {
      path: tf.zeros_like(values[path])
      if g is None
      else tf.convert_to_tensor(g)
      for path, g in gradients.items()
    }

  def _row_statistics(self, gradients):
    """Returns the row statistics of gradients that are sparse or None."""
    tf = lingvo_runtime.module('tensorflow')
    statistics = {}
    for path, gradient in gradients.items():
      shape = self.variables[path].shape
      if isinstance(gradient, tf.IndexedSlices):
        statistics[path] = structures.row_statistics(gradient, shape[0])
      elif gradient is None and shape.rank:
        statistics[path] = structures.no_row_statistics(shape[0])
    return statistics

  @contextlib.contextmanager
  def _in_lingvo(self) -> Iterator[None]:
    """The contexts in which tasks are built and called."""
    with (
      lingvo_runtime.eager_flag(True),
      lingvo_runtime.cluster(do_eval=self.do_eval, xla_device=self._xla_device),
    ):
      yield


def on_one_device(params: Any) -> Any:
  """Returns a copy of Params with meshes of one device.

  Sharding does not change results, and Lingvo cannot shard in eager mode.
  """
  params = params.Copy()
  for node in params_trees.all_params(params):
    mesh = params_trees.get(node, 'device_mesh')
    if mesh is not None:
      node.device_mesh = np.zeros([1] * np.ndim(mesh), int)
  return params


def without_sample_limits(params: Any):
  """Makes Params valid that leave the size of an evaluation to a runner.

  The trainer decides how much is evaluated; such Params fail without a value.

  Args:
    params: of a task; they are modified.
  """
  params.eval.samples_per_summary = params.eval.samples_per_summary or 1

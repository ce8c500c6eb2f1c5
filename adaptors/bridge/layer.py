"""A Lingvo layer as a `BaseLayer`: Lingvo's FProp inside of JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from adaptors.bridge import calling
from adaptors.bridge.functional import functional_layer, modules
from adaptors.bridge.functional import variables as stand_ins
from adaptors.bridge.functional.functional_layer import (
  FunctionalLayer,
  Functions,
)
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.bridge.scoped_variables import (
  GLOBAL_STEP,
  ScopedVariables,
  jax_path,
)
from adaptors.translate.registry import Translated
from adaptors.translate.variables import (
  Identity,
  OfDtype,
  Variable,
  VariableMap,
)
from adaptors.translate.view import ParamsView, class_path
from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layer_core.row_gradients import RowStatistics
from pax_compat.nested_map import NestedMap


class LingvoLayer(LingvoTask):
  """A Lingvo layer; copying returns the same object.

  Attributes:
    params: of the layer.
  """

  def __repr__(self):
    return class_path(self.params.cls)

  def _built(self, do_eval: bool) -> FunctionalLayer:
    key = self.xla_device, do_eval
    if key not in self._tasks:
      self._tasks[key] = FunctionalLayer(
        self.params, do_eval=do_eval, xla_device=self.xla_device
      )
    return self._tasks[key]


class BridgedLayer(base_layer.BaseLayer):
  """A Lingvo layer, compiled into the training step by TensorFlow.

  It has the arguments of Lingvo's FProp after theta, and its outputs. Its
  variables have the paths of Lingvo's theta. In addition it has a counter of
  its calls in training, `global_step`, used as Lingvo's global step.

  Attributes:
    lingvo_layer: a `LingvoLayer`.
  """

  # TensorFlow compiles it; see `inference.exporting`.
  ONE_SHAPE_AND_PLATFORM: ClassVar[bool] = True

  lingvo_layer: Any = REQUIRED

  def __call__(self, *args):
    arrays, structure = functional_layer.flatten(args, _is_array)
    arrays = list(map(jnp.asarray, arrays))
    if self.is_initializing():
      return self._initial(arrays, structure)
    layer, variables = self._layer, ScopedVariables(self)
    params = {path: variables.read(path) for path in layer.trained}
    others = {
      path: variables.read(path)
      for path in layer.variables
      if path not in params
    }
    counted = variables.read(GLOBAL_STEP)
    results, updates = _call(
      layer.of(structure),
      params,
      variables.probes(params),
      arrays,
      (others, counted, calling.seed(self.next_prng_key())),
    )
    variables.write_after_step(updates)
    return functional_layer.unflatten(results, layer.outputs[1], NestedMap)

  @property
  def _layer(self) -> FunctionalLayer:
    layer = self.lingvo_layer
    return layer.at_evaluation if self.do_eval else layer.at_training

  def _initial(self, arrays, structure):
    """Creates the variables, and returns zeros as outputs."""
    trace = self.lingvo_layer.trace((), (arrays, structure))
    layer = self.lingvo_layer.at_training
    ScopedVariables(self).create_all(
      layer.variables, probes=(*trace.sparse_tables, *trace.unused)
    )
    specs, results = layer.outputs
    zeros = [jnp.zeros(s.shape, s.dtype.as_numpy_dtype) for s in specs]
    return functional_layer.unflatten(zeros, results, NestedMap)


def bridge_part(view: ParamsView) -> Translated | None:
  """Returns a layer without a translation as a bridged layer.

  Args:
    view: its Params.

  Returns:
    The layer with its variables; None, and an issue, if it cannot be built.
  """
  made = _built(view, view.params)
  if made is None:
    return None
  if modules.of(made.at_training.variables):
    view.issue('', 'it wraps a module, so the whole task is bridged')
    return None
  return _bridged(view, made)


def bridge_module(view: ParamsView) -> Translated | None:
  """Returns a layer that wraps a module of TensorFlow Hub as a bridged layer.

  It has a second output, its regularization loss, if there is one. The names of
  its variables start with that of the layer: `image/conv/kernel`.

  Args:
    view: its Params.

  Returns:
    As `bridge_part`.
  """
  made = _built(view, modules.with_losses(view.params))
  translated = made and _bridged(view, made)
  if translated is None:
    return None

  def named(theta: str) -> str:
    return f'{view.params.name}/{theta.partition("/")[2]}'

  return Translated(
    translated.config,
    VariableMap(
      dataclasses.replace(v, theta=tuple(map(named, v.theta)))
      for v in translated.variables
    ),
  )


def _built(view: ParamsView, params: Any) -> LingvoLayer | None:
  """Returns a layer; None, and an issue, if it cannot be built."""
  lingvo_layer = LingvoLayer(params)
  try:
    _ = lingvo_layer.at_training
  except errors.UserError as error:
    view.issue('', f'it cannot be bridged: {error}')
    return None
  return lingvo_layer


def _bridged(view: ParamsView, made: LingvoLayer) -> Translated | None:
  """Returns a bridged layer; None, and an issue, if it needs its task."""
  layer = made.at_training
  for one in stand_ins.layers_of(layer.task):
    method = type(one).PostTrainingStepUpdate
    if not method.__module__.startswith('lingvo.'):
      view.issue(
        '',
        f'{type(one).__name__}.PostTrainingStepUpdate may read weights, so the'
        ' whole task is bridged',
      )
      return None
  variables = VariableMap(
    variable_of(theta, variable) for theta, variable in layer.variables.items()
  )
  return Translated(BridgedLayer.config(lingvo_layer=made), variables)


def variable_of(theta: str, variable: stand_ins.Variable) -> Variable:
  """Returns the equivalent of a bridged variable, whose value is identical.

  Args:
    theta: its theta path.
    variable: the stand-in.
  """
  dtype = np.dtype(variable.dtype.as_numpy_dtype)
  transform = Identity()
  if jax.dtypes.canonicalize_dtype(dtype) != dtype:
    transform = OfDtype(dtype.name)
  collections = variable.var_params.collections or ()
  return Variable(
    (theta,),
    jax_path(theta),
    transform=transform,
    is_trainable=variable.trainable,
    collections=() if variable.trainable else tuple(collections),
  )


def _is_array(x: Any) -> bool:
  return hasattr(x, 'shape') and hasattr(x, 'dtype')


def _call(
  functions: Functions,
  params: dict[str, jax.Array],
  probes: dict[str, RowStatistics],
  arrays: Sequence[jax.Array],
  others: tuple,
) -> tuple[list, dict]:
  """Runs FProp, differentiable by params, arrays, and probes.

  Args:
    functions: of the layer.
    params: trainable variables by theta path.
    probes: zeros by theta path, whose gradients are row statistics of the
      gradients of embedding tables; see `row_gradients`.
    arrays: among the arguments.
    others: non-trainable variables by theta path, the step and the seed.
  """
  is_float = [jnp.issubdtype(x.dtype, jnp.floating) for x in arrays]

  def in_jax(function, params, arrays, others, *rest):
    variables, step, seed = others
    values = {**params, **variables}
    return calling.in_jax(function)(values, list(arrays), step, seed, *rest)

  @jax.custom_vjp
  def differentiable(params, probes, arrays, others):
    del probes
    return in_jax(functions.forward, params, arrays, others)

  def forward(params, probes, arrays, others):
    results = differentiable(params, probes, arrays, others)
    return results, (params, probes, arrays, others)

  def backward(residuals, cotangents):
    params, probes, arrays, others = residuals
    results, _ = cotangents
    floats = [x for x in results if x.dtype != jax.dtypes.float0]
    by_param, by_float, statistics = in_jax(
      functions.backward, params, arrays, others, floats
    )
    rest = iter(by_float)
    by_array = [next(rest) if f else None for f in is_float]
    by_probe = {
      path: RowStatistics(*statistics[path]) if path in statistics else zeros
      for path, zeros in probes.items()
    }
    return by_param, by_probe, by_array, None

  differentiable.defvjp(forward, backward)
  return differentiable(params, probes, list(arrays), others)

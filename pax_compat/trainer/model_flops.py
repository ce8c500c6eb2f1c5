r"""The floating point operations (FLOPs) of a model, and MFU.

The FLOPs of a train step are those of the products (matrix products and
convolutions) of one forward pass, times three: the backward pass has two
products for each. A product of [m, k] with [k, n] has 2 m k n FLOPs.
Rematerialisation is never counted, as it is not in the forward pass. For a
Transformer this is the usual formula (Chowdhery et al. 2022, appendix B):

    FLOPs a token = 6 N + 12 L H Q T

N is the number of weights in products: a lookup in a table has none, a softmax
that shares the table has. The second term is attention: L layers, H heads of Q
dimensions, T tokens in a row, also those that a causal mask hides. Products
with one-hot arrays, which select as an index would (`flop_scopes.selection`),
and bubbles of a pipeline are not counted; neither are elementwise operations.

Model FLOPs utilisation (MFU) is the number of FLOPs a second over the peak of
the devices in bfloat16.
"""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
from absl import logging
from jax.extend import core as jax_core

from pax_compat import errors
from pax_compat.layer_core import flop_scopes
from pax_compat.nested_map import NestedMap
from pax_compat.trainer.feeding.pipeline import DeviceBatch

# Products of the forward and the backward pass for one of the forward pass.
_PRODUCTS_OF_A_STEP = 3

# Peak in bfloat16 (float16 where there is none) of what JAX calls one device,
# without sparsity, from the vendors' data sheets: FLOPs per second, by patterns
# of `device_kind`; the first that matches.
PEAKS = (
  (r'TPU v2', 22.5e12),
  (r'TPU v3', 61.5e12),
  (r'TPU v4 ?(lite|i)', 138e12),
  (r'TPU v4', 275e12),
  (r'TPU v5 ?(lite|e)', 197e12),
  (r'TPU v5', 459e12),
  (r'TPU v6', 918e12),
  (r'TPU ?7x|TPU v7', 1153.5e12),
  (r'GB200', 2500e12),
  (r'B200', 2250e12),
  (r'H200', 989e12),
  (r'H100.*PCIe', 756e12),
  (r'H100.*NVL', 835e12),
  (r'H100|GH200', 989e12),
  (r'A100', 312e12),
  (r'A30\b', 165e12),
  (r'A10G', 70e12),
  (r'A10\b', 125e12),
  (r'L40S', 362e12),
  (r'L4\b', 121e12),
  (r'V100', 125e12),
  (r'T4\b', 65e12),
  (r'MI300X', 1307e12),
  (r'MI250', 191.5e12),
)

# Primitives whose products cannot be seen.
_OPAQUE = ('call_tf', 'ffi_call', 'custom_call', 'pure_callback')


class _UnknownError(Exception):
  """The products of an operation cannot be counted."""


def peak_of(kind: str) -> float | None:
  """Returns the peak FLOPs per second of a device; None if it is not known.

  Args:
    kind: JAX's name of the device, such as 'TPU v4'.
  """
  for pattern, peak in PEAKS:
    if re.search(pattern, kind):
      return peak
  return None


def of_train_step(program: Any, batch: NestedMap) -> float | None:
  """Returns the FLOPs of a train step; see the module's description.

  Args:
    program: the `TaskProgram`.
    batch: the global batch, or its shapes and dtypes.

  Returns:
    The number; None if an operation of the model hides its products, such as
    Lingvo's own code in a bridged layer.
  """

  def specs(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

  def loss(variables, batch, key):
    return program.forward(variables, batch, key)[0]

  variables = specs(program.abstract_state.mdl_vars)
  key = jax.eval_shape(lambda: jax.random.key(0))
  with (
    flop_scopes.counting(),
    jax.sharding.use_abstract_mesh(program.mesh.abstract_mesh),
  ):
    traced = jax.make_jaxpr(loss)(variables, specs(batch), key)
  try:
    return float(_PRODUCTS_OF_A_STEP * _of_jaxpr(traced.jaxpr, [True]))
  except _UnknownError:
    return None


def of_traced(traced: jax.stages.Traced) -> float | None:
  """Returns the FLOPs of all products of a traced function.

  Those of rematerialisation and of a pipeline's bubbles, too.

  Returns:
    The number; None if an operation hides its products.
  """
  jaxpr = traced.jaxpr.jaxpr
  try:
    return float(_of_jaxpr(jaxpr, [True] * len(jaxpr.outvars)))
  except _UnknownError:
    return None


def by_shapes(program: Any) -> Callable[[DeviceBatch], float | None]:
  """Returns `of_train_step` of batches, which counts each shape once."""
  known: dict[str, float | None] = {}

  def flops(batch: DeviceBatch) -> float | None:
    if batch.shapes not in known:
      known[batch.shapes] = _counted(program, batch)
    return known[batch.shapes]

  return flops


def _counted(program: Any, batch: DeviceBatch) -> float | None:
  """Returns the FLOPs of a batch's step; logs why they are not known."""
  try:
    found = of_train_step(program, batch.arrays)
  except Exception as e:  # noqa: BLE001 (a run does not end for its MFU)
    logging.warning('MFU is not computed: %s', errors.one_line(e))
    return None
  if found is None:
    logging.warning('MFU is not computed: a layer hides its products')
  return found


def _of_jaxpr(jaxpr: Any, used: Sequence[bool]) -> int | Fraction:
  """Returns the FLOPs of the equations that the used outputs need.

  XLA removes the others, such as logits that are returned and then ignored.
  """
  outputs = zip(jaxpr.outvars, used, strict=True)
  needed = {id(var) for var, is_used in outputs if is_used}
  total = 0
  for equation in reversed(jaxpr.eqns):
    results = [id(var) in needed for var in equation.outvars]
    if any(results) or equation.effects:
      needed.update(map(id, equation.invars))
      names = str(equation.source_info.name_stack)
      part = flop_scopes.counted_part(names)
      total += part * _of_equation(equation, results) if part else 0
  return total


def _of_equation(equation: Any, used: Sequence[bool]) -> int | Fraction:
  """Returns the FLOPs of an equation, some of whose outputs are used."""
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    return _of_product(equation)
  if name == 'conv_general_dilated':
    return _of_convolution(equation)
  if name in _OPAQUE:
    raise _UnknownError(name)
  if name == 'cond':
    return max(_of_jaxpr(b.jaxpr, used) for b in params['branches'])
  if name == 'scan':
    used = _used_by_scan(equation, used)
  inner = 0
  for jaxpr in _jaxprs(params):
    fits = len(jaxpr.outvars) == len(used)
    inner += _of_jaxpr(jaxpr, used if fits else [True] * len(jaxpr.outvars))
  if name == 'scan':
    return params['length'] * inner
  if name == 'while' and inner:
    raise _UnknownError(name)
  if name == 'shard_map':
    return inner * _num_shards(params)
  if name == 'pallas_call':  # A kernel runs once for each cell of its grid.
    return inner * _num_cells(params)
  return inner


def _used_by_scan(equation: Any, used: Sequence[bool]) -> list[bool]:
  """Returns which outputs of a scan's body are used.

  The next iteration may use the carry, whose shapes are those of the body;
  other outputs are stacked.
  """
  body = equation.params['jaxpr'].jaxpr.outvars
  pairs = zip(body, equation.outvars, used, strict=True)
  return [i.aval.ndim == o.aval.ndim or is_used for i, o, is_used in pairs]


def _jaxprs(params: Any) -> list[Any]:
  """Returns the jaxprs among the parameters of an equation."""
  found = []
  for value in params.values():
    for one in value if isinstance(value, tuple | list) else (value,):
      if isinstance(one, jax_core.ClosedJaxpr):
        found.append(one.jaxpr)
      elif isinstance(one, jax_core.Jaxpr):
        found.append(one)
  return found


def _of_product(equation: Any) -> int:
  (contracted, _), _ = equation.params['dimension_numbers']
  left = equation.invars[0].aval.shape
  [out] = equation.outvars
  return 2 * math.prod(out.aval.shape) * math.prod(left[d] for d in contracted)


def _of_convolution(equation: Any) -> int:
  numbers = equation.params['dimension_numbers']
  kernel = equation.invars[1].aval.shape
  [out] = equation.outvars
  # Each output is a sum over the window and the input features of its group.
  summed = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
  return 2 * math.prod(out.aval.shape) * summed


def _num_cells(params: Any) -> int:
  """Returns how often a Pallas kernel runs."""
  grid = params['grid_mapping'].grid
  if not all(isinstance(size, int) for size in grid):
    raise _UnknownError('pallas_call')
  return math.prod(grid)


def _num_shards(params: Any) -> int:
  """Returns how many devices run the body of a `shard_map`."""
  mesh = params['mesh']
  manual = params.get('manual_axes') or mesh.axis_names
  return math.prod(mesh.shape[axis] for axis in manual)

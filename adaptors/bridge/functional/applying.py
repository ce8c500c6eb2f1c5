"""The update of a Lingvo optimizer as a pure function.

`Apply` is traced with real TensorFlow variables. XLA compiles it as a function
whose parameters are the variables' values; after the outputs are read, all
variables are set back, so that they are not among XLA's own outputs.
"""

import collections
import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.ops import compilable
from adaptors.equivalents import lingvo_optimizers
from pax_compat import errors

# Attributes of a module, which belong to a dialect that TensorFlow's op for
# modules does not load.
_ATTRIBUTES = re.compile(r'^(module @\S+) attributes \{.*\} \{$', re.MULTILINE)
_MODULE_VERSION = 9
_UNKNOWN = lingvo_optimizers.UNKNOWN
_DTYPES = ('float32', 'bfloat16', 'float16', 'int32', 'bool')


class Weight(NamedTuple):
  """A weight of an optimizer.

  Attributes:
    path: its path in JAX.
    name: of its variable in Lingvo.
    shape: its shape.
    dtype: name of its dtype.
  """

  path: str
  name: str
  shape: tuple[int, ...]
  dtype: str


class _Compiled(NamedTuple):
  """A compiled update.

  Its arguments are the gradients, the rate, the step and the loss weight, then
  `captured`; its results the values of the weights and of the other variables.

  Attributes:
    module: StableHLO.
    captured: indices of variables among the results, or constants.
    dtypes: of the results.
    shapes: of the results.
  """

  module: bytes
  captured: list[Any]
  dtypes: list[Any]
  shapes: list[Any]


class Applied:
  """The update of some weights by a Lingvo optimizer.

  Attributes:
    slots: `slot_0`, `slot_1`, ...: names of the variables that belong to a
      weight, in the order in which they are created. (TensorFlow's own names
      depend on what else the process has created.)
    others: initial values of its other variables, `variable_0` and so on, by
      name.
    uses_step: whether it depends on the global step.
  """

  def __init__(
    self, params: Any, weights: Sequence[Weight], *, is_sparse: bool = False
  ):
    """Traces `Apply` once, which creates the optimizer's variables.

    Args:
      params: of the optimizer.
      weights: the weights.
      is_sparse: whether gradients are `tf.IndexedSlices`, as arguments pairs of
        (values, indices).

    Raises:
      UserError: it has variables that JAX cannot have.
    """
    tf = lingvo_runtime.module('tensorflow')
    self._weights, self._is_sparse = tuple(weights), is_sparse
    self._rate = None
    self._variables = [
      tf.Variable(_pattern(w), name=w.name.removesuffix(':0')) for w in weights
    ]
    created = []

    def create(next_creator, **kwargs):
      created.append(next_creator(**kwargs))
      return created[-1]

    with tf.variable_creator_scope(create):
      with _in_lingvo():
        self._optimizer = params.Copy().Instantiate()
      self._apply = tf.function(self._applied, autograph=False)
      traced = self._apply.get_concrete_function(*self._specs())
    made = [
      x
      for x in created
      if any(x.handle is one for one in traced.captured_inputs)
    ]
    self._check_made(made, traced.captured_inputs)
    self._made = dict(zip(self._keys(made), made, strict=True))
    self._initial = {key: _initial(x) for key, x in self._made.items()}
    self.slots = tuple(dict.fromkeys(s for path, s in self._made if path))
    self.others = {k: x for (path, k), x in self._initial.items() if not path}
    self.uses_step = _is_used(traced.inputs[-len(traced.captured_inputs) - 2])

  def initial(self, path: str, slot: str) -> np.ndarray | None:
    """Returns the initial value of a weight's slot; None if it has none."""
    return self._initial.get((path, slot))

  def check(self):
    """Raises a UserError if XLA cannot compile the update."""
    assert self._compiled.module

  def in_jax(self, in_jax: Callable) -> Callable:
    """Returns the update as a function of arrays.

    TensorFlow's variables are then freed.

    Args:
      in_jax: makes a function of tensors one of arrays; see `calling.in_jax`.

    Returns:
      (weights by path, slots by name and path, others by name, gradients by
      path, rate [], step [], loss weight []) -> the new (weights, slots,
      others).
    """
    compiled = self._compiled
    self._free()
    xla = lingvo_runtime.module('tensorflow.compiler.tf2xla.python.xla')

    def called(*arguments):
      return xla.call_module(
        arguments,
        version=_MODULE_VERSION,
        module=compiled.module,
        Tout=compiled.dtypes,
        Sout=compiled.shapes,
        platforms=['CPU'],
      )

    def update(weights, slots, others, gradients, rate, step, loss_weight):
      values = [
        *(weights[w.path] for w in self._weights),
        *(slots[k][path] if path else others[k] for path, k in self._initial),
      ]
      captured = [
        values[x] if isinstance(x, int) else x for x in compiled.captured
      ]
      of_weights = [gradients[w.path] for w in self._weights]
      results = in_jax(called)(*of_weights, rate, step, loss_weight, *captured)
      return self._named(results)

    return update

  @functools.cached_property
  def _compiled(self) -> '_Compiled':
    """The update as a module.

    Raises:
      UserError: XLA cannot compile it.
    """
    tf = lingvo_runtime.module('tensorflow')
    everything = [*self._variables, *self._made.values()]
    flat = tf.nest.flatten(self._specs())
    updated = self._updated(everything)
    traced = updated.get_concrete_function(*flat)
    refused = compilable.uncompilable_ops(traced)
    if refused:
      raise compilable.refusal(refused)
    text = updated.experimental_get_compiler_ir(*flat)(stage='stablehlo')
    handles = [v.handle for v in everything]
    return _Compiled(
      module=_ATTRIBUTES.sub(r'\1 {', text).encode(),
      captured=[
        next(i for i, handle in enumerate(handles) if handle is x)
        if x.dtype == tf.resource
        else x.numpy()
        for x in traced.captured_inputs
      ],
      dtypes=[v.dtype for v in everything],
      shapes=[v.shape for v in everything],
    )

  def _free(self):
    """Frees TensorFlow's variables, which only `_compiled` and `run` need."""
    self._variables, self._made = [], {}
    self._optimizer = self._apply = None

  def _named(self, results: Sequence[Any]) -> tuple[dict, dict, dict]:
    """Returns the results by name, as `in_jax` returns them."""
    paths = [w.path for w in self._weights]
    weights = dict(zip(paths, results, strict=False))
    slots: dict[str, dict] = {slot: {} for slot in self.slots}
    others = {}
    made = zip(self._initial, results[len(paths) :], strict=True)
    for (path, name), value in made:
      if path:
        slots[name][path] = value
      else:
        others[name] = value
    return weights, slots, others

  def run(self, gradients: Sequence[Any], rate: float, step: int) -> None:
    """Makes a step on the variables, in TensorFlow."""
    self._apply(list(gradients), np.float32(rate), np.int32(step), 1.0)

  @property
  def values(self) -> list[np.ndarray]:
    """The values of the weights and of the optimizer's variables."""
    # TensorFlow updates in place what `numpy()` returns.
    everything = (*self._variables, *self._made.values())
    return [np.array(x.numpy()) for x in everything]

  @values.setter
  def values(self, values: Sequence[np.ndarray]):
    everything = (*self._variables, *self._made.values())
    for variable, value in zip(everything, values, strict=True):
      variable.assign(value)

  def _updated(self, everything: Sequence[Any]) -> Any:
    """Returns a `tf.function` of new values, which sets variables back."""
    tf = lingvo_runtime.module('tensorflow')

    def updated(*flat):
      before = [_read(x) for x in everything]
      self._applied(*tf.nest.pack_sequence_as(self._specs(), flat))
      after = [_read(x) for x in everything]
      with tf.control_dependencies(after):
        for variable, value in zip(everything, before, strict=True):
          tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
      return after

    return tf.function(updated, autograph=False, jit_compile=True)

  def _applied(self, gradients, rate, step, weight):
    """Calls `Apply`; arguments are tensors."""
    tf = lingvo_runtime.module('tensorflow')
    py_utils = lingvo_runtime.module('lingvo.core.py_utils')
    if self._is_sparse:
      gradients = [
        tf.IndexedSlices(values, indices, tf.constant(w.shape))
        for (values, indices), w in zip(gradients, self._weights, strict=True)
      ]
    pairs = py_utils.NestedMap(
      {
        f'w{index:06d}': py_utils.VarGrad(variable, gradient)
        for index, (variable, gradient) in enumerate(
          zip(self._variables, gradients, strict=True)
        )
      }
    )
    self._rate = rate
    with _in_lingvo(), py_utils.GlobalStepContext(tf.cast(step, tf.int64)):
      self._optimizer.Apply(_Rate(lambda: self._rate), pairs, weight)

  def _specs(self) -> tuple:
    """Returns the arguments of `_applied`."""
    tf = lingvo_runtime.module('tensorflow')
    gradients = [tf.TensorSpec(w.shape, w.dtype) for w in self._weights]
    if self._is_sparse:
      gradients = [
        (
          tf.TensorSpec([None, *w.shape[1:]], w.dtype),
          tf.TensorSpec([None], tf.int32),
        )
        for w in self._weights
      ]
    number = tf.TensorSpec([], tf.float32)
    return gradients, number, tf.TensorSpec([], tf.int32), number

  def _check_made(self, made: Sequence[Any], captured: Sequence[Any]):
    """Raises a UserError over variables that cannot be passed."""
    tf = lingvo_runtime.module('tensorflow')
    known = [x.handle for x in (*self._variables, *made)]
    for one in captured:
      if one.dtype == tf.resource and not any(one is x for x in known):
        raise errors.UserError(f'it uses {one}, which it has not created')
    for variable in made:
      if variable.dtype.name not in _DTYPES:
        raise errors.UserError(
          f'it has the variable {variable.name} of dtype {variable.dtype.name};'
          f' expected one of {", ".join(_DTYPES)}'
        )

  def _keys(self, made: Sequence[Any]) -> list[tuple[str, str]]:
    """Returns the weight and the name of each variable; see `_keys`."""
    return _keys(made, self._weights)


def names_in_graphs(
  params: Any, weights: Sequence[Weight]
) -> dict[tuple[str, str], str]:
  """Returns the names of an optimizer's variables in Lingvo's graph mode.

  Args:
    params: of the optimizer.
    weights: its weights.

  Returns:
    The names without `:0` by weight, or '', and slot, or variable; see
    `Applied`.
  """
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  created = []

  def create(next_creator, **kwargs):
    created.append(next_creator(**kwargs))
    return created[-1]

  with (
    tf.Graph().as_default(),
    lingvo_runtime.eager_flag(False),
    lingvo_runtime.cluster(),
  ):
    pairs = py_utils.NestedMap()
    for index, w in enumerate(weights):
      variable = tf.compat.v1.get_variable(
        w.name.removesuffix(':0'), w.shape, w.dtype, use_resource=True
      )
      pairs[f'w{index:06d}'] = py_utils.VarGrad(
        variable, tf.ones_like(variable)
      )
    with tf.variable_creator_scope(create):
      step = tf.constant(0, tf.int64)
      with py_utils.GlobalStepContext(step):
        params.Copy().Instantiate().Apply(tf.constant(0.1), pairs, 1.0)
  names = [variable.op.name for variable in created]
  return dict(zip(_keys(created, weights), names, strict=True))


def _keys(
  made: Sequence[Any], weights: Sequence[Weight]
) -> list[tuple[str, str]]:
  """Returns the weight and the name of each variable; '' for no weight."""
  numbers = collections.Counter()
  keys = []
  for variable in made:
    path = _owner(variable, weights)
    kind = 'slot' if path else 'variable'
    keys.append((path, f'{kind}_{numbers[path]}'))
    numbers[path] += 1
  return keys


def _owner(variable: Any, weights: Sequence[Weight]) -> str:
  """Returns the path of the weight that a variable belongs to, or ''.

  Its name starts with that of the weight, and it has the weight's shape.
  """
  found = [
    w
    for w in weights
    if variable.name.startswith(f'{w.name.removesuffix(":0")}/')
    and tuple(variable.shape) == w.shape
  ]
  return max(found, key=lambda w: len(w.name)).path if found else ''


def _is_used(tensor: Any) -> bool:
  """Whether a step is used otherwise than to be cast; see `_applied`."""
  [cast] = tensor.consumers()
  return bool(cast.outputs[0].consumers())


def _initial(variable: Any) -> np.ndarray:
  """Returns the initial value of a variable, which is constant.

  Raises:
    UserError: it depends on the weights, or is random.
  """
  value = np.array(variable.numpy())
  if value.size and np.any(value != value.flat[0]):
    raise errors.UserError(
      f'the initial value of its variable {variable.name} is not a constant'
    )
  # Takes no memory.
  return np.broadcast_to(value.flat[0], value.shape) if value.size else value


class _Rate:
  """A learning rate that is called as in eager mode, or used as a tensor.

  In graph mode Lingvo passes a tensor, which not all optimizers can call.
  Arithmetic with numbers gives another such rate, so that the result can be
  called, too.
  """

  def __init__(self, get: Callable[[], Any]):
    self._get = get

  def __call__(self):
    return self._get()

  def __getattr__(self, name: str):
    if name.startswith('_'):
      raise AttributeError(name)
    return getattr(self._get(), name)

  def __tf_tensor__(self, dtype=None, name=None):
    tf = lingvo_runtime.module('tensorflow')
    rate = self._get()
    return rate if dtype is None else tf.cast(rate, dtype, name=name)


def _of_rate(operate: Callable[[Any, Any], Any]) -> Callable:
  def operated(self, *others):
    tf = lingvo_runtime.module('tensorflow')
    if any(map(tf.is_tensor, others)):  # These belong to the current trace.
      return operate(self._get(), *others)
    return _Rate(lambda: operate(self._get(), *map(_called, others)))

  return operated


def _called(x: Any) -> Any:
  return x() if isinstance(x, _Rate) else x


for _name in ('add', 'sub', 'mul', 'truediv', 'pow'):
  _operate = getattr(operator, f'__{_name}__')
  setattr(_Rate, f'__{_name}__', _of_rate(_operate))
  setattr(_Rate, f'__r{_name}__', _of_rate(lambda x, y, f=_operate: f(y, x)))
_Rate.__neg__ = _of_rate(operator.neg)


@contextlib.contextmanager
def _taking_tensors() -> Iterator[None]:
  """Makes `Base.Apply` accept a rate that is a tensor, as in graph mode.

  In eager mode Lingvo's refuses it: an optimizer is made in the first step,
  with its rate. Here it is made with a rate that has the value of each trace.
  """
  base = lingvo_runtime.module('lingvo.core.optimizer').Base
  apply = base.Apply

  def applied(self, lr, var_grad, weight=None):
    if not callable(lr):
      given = vars(self).setdefault('_bridge_rates', [None])
      given[0] = lr
      lr = _Rate(lambda: given[0])
    return apply(self, lr, var_grad, weight)

  base.Apply = applied
  try:
    yield
  finally:
    base.Apply = apply


def sparse_updates(params: Any) -> str:
  """Returns how an optimizer updates tables with sparse gradients.

  It is compared with the update by dense gradients, on a small table.

  Args:
    params: of the optimizer.

  Returns:
    See `ByVariables.sparse_updates`.
  """
  table = Weight('table', 'table', (5, 2), 'float32')
  lookups = [[0, 2, 2], [1, 4], [2, 3], [0, 1]]
  try:
    theirs = Applied(params, [table], is_sparse=True)
    expected = _steps(theirs, lookups, '', is_sparse=True)
  except Exception as error:
    return f'{_UNKNOWN}: Lingvo fails, {errors.one_line(error)}'
  for kind in ('', lingvo_optimizers.OTHER_ROWS, lingvo_optimizers.TABLES):
    found = _steps(Applied(params, [table]), lookups, kind)
    if all(
      np.allclose(x, y, rtol=1e-6, atol=1e-7)
      for x, y in zip(found, expected, strict=True)
    ):
      return kind
  return f'{_UNKNOWN}: no known rule gives what Lingvo computes'


def _steps(
  applied: Applied,
  lookups: Sequence[Sequence[int]],
  leaves_alone: str,
  *,
  is_sparse: bool = False,
) -> list[np.ndarray]:
  """Returns a small table after each step.

  Args:
    applied: the update of the table only.
    lookups: the rows that are looked up in each step.
    leaves_alone: see `OnLookedUpRows.leaves_alone`.
    is_sparse: whether gradients are sparse.
  """
  rng, tables = np.random.default_rng(1), []
  for step, ids in enumerate(lookups):
    slices = rng.normal(size=[len(ids), 2]).astype(np.float32)
    dense = np.zeros([5, 2], np.float32)
    np.add.at(dense, ids, slices)
    before = applied.values
    if is_sparse:
      applied.run([(slices, np.array(ids, np.int32))], 0.1, step)
    else:
      applied.run([dense], 0.1, step)
      rows = np.isin(np.arange(5), ids)[:, np.newaxis]
      rows &= leaves_alone != lingvo_optimizers.TABLES
      if leaves_alone:
        applied.values = [
          np.where(rows, new, old) if new.shape == dense.shape else new
          for new, old in zip(applied.values, before, strict=True)
        ]
    tables.append(applied.values[0])
  return tables


def _pattern(weight: Weight) -> np.ndarray:
  """Returns values for a weight that no initial value of a slot has."""
  size = int(np.prod(weight.shape))
  return (
    (0.5 + np.arange(size) / max(size, 1))
    .reshape(weight.shape)
    .astype(
      lingvo_runtime.module('tensorflow').as_dtype(weight.dtype).as_numpy_dtype
    )
  )


def _read(variable: Any) -> Any:
  tf = lingvo_runtime.module('tensorflow')
  return tf.raw_ops.ReadVariableOp(
    resource=variable.handle, dtype=variable.dtype
  )


@contextlib.contextmanager
def _in_lingvo() -> Iterator[None]:
  """The contexts in which optimizers are built and called."""
  with (
    lingvo_runtime.eager_flag(True),
    lingvo_runtime.cluster(),
    _taking_tensors(),
  ):
    yield

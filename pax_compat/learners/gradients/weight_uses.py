"""How a loss uses its weights, read from its equations.

The norm of a weight's gradient can be taken from a tap, see
`layer_core.gradients.ghost_norms`, if the tapped operation is the weight's only
use. What is found here decides that, so in doubt a use counts as another one.
"""

import collections
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jax.extend import core

from pax_compat.layer_core.gradients import ghost_norms

# Operations whose result is the weight, in another form.
_SAME = frozenset(
  {
    'convert_element_type',
    'copy',
    'reshape',
    'sharding_constraint',
    'squeeze',
    'transpose',
  }
)
# Calls whose arguments are those of the equations within. A function with a
# gradient of its own is none of them: what it computes is not differentiated.
_CALLS = frozenset(
  {
    'checkpoint',
    'closed_call',
    'jit',
    'pjit',
    'remat2',
    'scan',
  }
)
# Operations that a tap can belong to.
_OF_TAPS = {
  ghost_norms.PRODUCT: frozenset({'dot_general'}),
  ghost_norms.SUM: frozenset({'add', 'broadcast_in_dim'}),
  ghost_norms.LOOKUP: frozenset(
    {'broadcast_in_dim', 'dot_general', 'gather', 'slice'}
  ),
}
# A use whose operation is not known.
_UNKNOWN = 'unknown'


class Use(NamedTuple):
  """A use of a weight.

  Attributes:
    operation: name of the primitive.
    rank: of the weight there: within a loop over stacked layers, that of one.
    times: how often it is executed.
  """

  operation: str
  rank: int
  times: int


class Uses(NamedTuple):
  """The uses of all weights.

  Attributes:
    weights: uses by path.
    taps: how often each tap is executed.
  """

  weights: dict[str, list[Use]]
  taps: collections.Counter[ghost_norms.Tap]

  def tap_suffices(
    self, path: str, size: int, found: ghost_norms.Found
  ) -> bool:
    """Whether a tap gives the norm of the gradient of a weight.

    Args:
      path: of the weight.
      size: its number of elements, of all stacked layers.
      found: what the trace has found.
    """
    sizes = found.sizes.get(path, set())
    taps = [tap for tap in self.taps if tap.path == path]
    if len(sizes) != 1 or len(taps) != 1 or len(self.weights[path]) != 1:
      return False
    [one], [tap], [use] = sizes, taps, self.weights[path]
    return (
      use.operation in _OF_TAPS[tap.use]
      and one * use.times == size
      and use.times == self.taps[tap]
    )

  def rank(self, path: str) -> int:
    """Returns the rank of a weight where it is used; 0 if it is not."""
    return max((use.rank for use in self.weights[path]), default=0)


def of_weights(closed: core.ClosedJaxpr, paths: Mapping[int, str]) -> Uses:
  """Returns the uses of weights.

  Args:
    closed: the equations of the loss.
    paths: paths of weights, by the index of the input.
  """
  uses = Uses({path: [] for path in paths.values()}, collections.Counter())
  inputs = closed.jaxpr.invars
  _walk(closed.jaxpr, {inputs[i]: path for i, path in paths.items()}, 1, uses)
  return uses


def _walk(
  jaxpr: core.Jaxpr, weights: dict[Any, str], times: int, uses: Uses
) -> list[str | None]:
  """Adds the uses in some equations.

  Args:
    jaxpr: the equations.
    weights: paths of the variables that are weights.
    times: how often the equations are executed.
    uses: what is added to.

  Returns:
    The path of each result that is a weight, or None.
  """

  def add(operation, variable):
    path = weights.get(variable)
    if path is not None:
      use = Use(operation, variable.aval.ndim, times)
      uses.weights[path].append(use)

  weights = {variable: path for variable, path in weights.items()}
  for equation in jaxpr.eqns:
    operation = equation.primitive.name
    inputs = [x for x in equation.invars if isinstance(x, core.Var)]
    if operation == 'name':
      tap = ghost_norms.tap_of(equation.params['name'])
      # Of one within `vmap`, a tap would measure each call by itself.
      if tap is not None and equation.outvars[0].aval.ndim == tap.rank:
        uses.taps[tap] += times
    if operation in _SAME or operation == 'name':
      if inputs and inputs[0] in weights:
        weights[equation.outvars[0]] = weights[inputs[0]]
      continue
    bodies = list(_bodies(equation))
    for body, arguments, repeated in bodies:
      own = {
        inner: weights[outer]
        for inner, outer in zip(body.invars, arguments, strict=True)
        if isinstance(outer, core.Var) and outer in weights
      }
      results = _walk(body, own, times * repeated, uses)
      _add_results(equation, results, weights, uses, times * repeated)
    if not bodies:
      for variable in inputs:
        add(operation, variable)
  return [
    weights.get(x) if isinstance(x, core.Var) else None for x in jaxpr.outvars
  ]


def _add_results(equation, results, weights, uses, times):
  """Follows weights out of a call; out of a loop they count as used."""
  is_call = equation.primitive.name != 'scan' and len(results) == len(
    equation.outvars
  )
  for variable, path in zip(equation.outvars, results, strict=False):
    if path is not None and is_call:
      weights[variable] = path
    elif path is not None:
      uses.weights[path].append(Use(_UNKNOWN, variable.aval.ndim, times))


def _bodies(equation) -> Iterator[tuple[core.Jaxpr, list[Any], int]]:
  """Yields the equations within one, their arguments, and their repetitions.

  None of calls whose arguments are not known: these use their weights.
  """
  name, params = equation.primitive.name, equation.params
  if name == 'cond':
    for branch in params['branches']:
      yield branch.jaxpr, equation.invars[1:], 1
  if name not in _CALLS:
    return
  body = params.get('jaxpr', params.get('call_jaxpr'))
  if body is None:
    return
  body = getattr(body, 'jaxpr', body)
  if len(body.invars) == len(equation.invars):
    yield body, list(equation.invars), params.get('length', 1)

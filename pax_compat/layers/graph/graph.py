"""A layer whose components are connected by named values."""

from collections.abc import Sequence
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layers.graph import containers
from pax_compat.layers.graph.graph_signature import (
  Input,
  Signature,
  find_dependencies,
  order,
  parse_signature,
)
from pax_compat.layers.template_fields import refuse_mappings
from pax_compat.nested_map import NestedMap


class Graph(base_layer.BaseLayer):
  """A graph of components that read and write named values.

  For example relu(a) + b, with the nodes in any order:

  >>> import jax
  >>> config = Graph.config(
  ...   input_endpoints=['a', 'b'],
  ...   output_endpoints=['d'],
  ...   sub=[('c,b->d', lambda c, b: c + b), ('a->c', jax.nn.relu)],
  ... )
  >>> print(config.Instantiate().apply({}, -2.0, 3.0))
  3.0

  Attributes:
    input_endpoints: names of the arguments.
    output_endpoints: the returned values: names, or paths such as `c.logits`
      into NestedMaps.
    sub: the nodes as pairs of a signature and a template or function. A node
      that writes several values returns a tuple of them. A child is named
      `sub_` and the first path that it writes, with `_` for each dot. An
      argument can be a list `[a,b]` or a NestedMap `(x=a,y=b)` of values;
      writes to `c.x` and `c.y` make the NestedMap `c`.
    allow_unread_inputs: whether arguments may stay unused.
  """

  input_endpoints: Sequence[str] = REQUIRED
  output_endpoints: Sequence[str] = REQUIRED
  sub: Sequence[tuple[str, containers.Component]] = REQUIRED
  allow_unread_inputs: bool = False

  def setup(self):
    refuse_mappings(self, 'wt', 'out')
    signatures = [parse_signature(text) for text, _ in self.sub]
    dependencies = find_dependencies(
      signatures,
      self.input_endpoints,
      self.output_endpoints,
      allow_unread_inputs=self.allow_unread_inputs,
    )
    self.order = order(signatures, dependencies)
    self.signatures = tuple(signatures)
    for signature, (_, component) in zip(signatures, self.sub, strict=True):
      containers.create_component(self, child_name(signature), component)

  def __call__(self, *args) -> Any:
    """Returns the one output endpoint, or a tuple of several.

    Args:
      *args: one per input endpoint; arrays or NestedMaps.

    Raises:
      UserError: a wrong number of arguments, or a node returns another number
        of values than it writes.
    """
    if len(args) != len(self.input_endpoints):
      raise errors.UserError(
        f'Graph: got {len(args)} arguments; expected'
        f' {", ".join(self.input_endpoints)}'
      )
    values = dict(zip(self.input_endpoints, args, strict=True))
    for i in self.order:
      signature = self.signatures[i]
      node = containers.get_component(
        self, child_name(signature), self.sub[i][1]
      )
      result = node(*(_gather(values, item) for item in signature.inputs))
      for path, value in _named(signature, self.sub[i][0], result).items():
        _write(values, path, value)
    outputs = tuple(_read(values, path) for path in self.output_endpoints)
    return outputs[0] if len(outputs) == 1 else outputs


def child_name(signature: Signature) -> str:
  """Returns the name of a node's child layer."""
  return 'sub_' + signature.outputs[0].replace('.', '_')


def _gather(values: dict[str, Any], item: Input) -> Any:
  """Returns an argument of a node."""
  if isinstance(item, str):
    return _read(values, item)
  if isinstance(item, dict):
    return NestedMap({k: _gather(values, x) for k, x in item.items()})
  return [_gather(values, x) for x in item]


def _write(values: dict[str, Any], path: str, value: Any):
  """Sets the value at a dotted path, and creates NestedMaps on the way."""
  *parents, last = path.split('.')
  for name in parents:
    values = values.setdefault(name, NestedMap())
  values[last] = value


def _read(values: dict[str, Any], path: str) -> Any:
  """Returns the value at a path such as `batch.ids`.

  Raises:
    UserError: the path does not exist.
  """
  found: Any = values
  for name in path.split('.'):
    known = list(found) if isinstance(found, dict) else []
    if name not in known:
      raise errors.UserError(
        f'Graph: no {name!r} in {path!r}' + errors.did_you_mean(name, known)
      )
    found = found[name]
  return found


def _named(signature: Signature, text: str, result: Any) -> dict[str, Any]:
  """Returns a node's outputs by name."""
  if len(signature.outputs) == 1:
    return {signature.outputs[0]: result}
  values = containers.as_tuple(result)
  if len(values) != len(signature.outputs):
    raise errors.UserError(
      f'Graph: the node {text!r} returned {len(values)} values; expected'
      f' {len(signature.outputs)}'
    )
  return dict(zip(signature.outputs, values, strict=True))

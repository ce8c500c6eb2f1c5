"""A layer whose parts are connected by names."""

import dataclasses
import graphlib
import re
from collections.abc import Sequence
from typing import Any

from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED
from pax_compat.layers import containers

_NAME = re.compile(r'[A-Za-z_]\w*')
_PATH = re.compile(rf'{_NAME.pattern}(\.{_NAME.pattern})*')


@dataclasses.dataclass(frozen=True)
class Signature:
  """What a node reads and what it writes.

  Attributes:
    inputs: names of values, or paths such as `batch.ids` into NestedMaps.
    outputs: names of values.
  """

  inputs: tuple[str, ...]
  outputs: tuple[str, ...]

  @property
  def sources(self) -> tuple[str, ...]:
    """The values that the inputs are, or are parts of."""
    return tuple(path.partition('.')[0] for path in self.inputs)


def parse_signature(text: str) -> Signature:
  """Returns a signature such as `a,b.ids->c`.

  Raises:
    UserError: it is not of this form.
  """
  left, arrow, right = text.partition('->')
  inputs = tuple(name.strip() for name in left.split(',') if left.strip())
  outputs = tuple(name.strip() for name in right.split(','))
  well_formed = all(_PATH.fullmatch(name) for name in inputs) and all(
    _NAME.fullmatch(name) for name in outputs
  )
  if not arrow or not well_formed:
    raise errors.UserError(
      f'Graph: {text!r} is no signature; expected names such as'
      " 'a,b.ids->c', where b.ids is a field of b"
    )
  return Signature(inputs, outputs)


class Graph(base_layer.BaseLayer):
  """Connects parts by the names of what they read and write.

  For example relu(a) + b, with the nodes in any order:

      Graph.config(
        input_endpoints=['a', 'b'],
        output_endpoints=['d'],
        sub=[('a->c', ReLU.config()), ('c,b->d', jnp.add)],
      )

  Attributes:
    input_endpoints: names of the arguments.
    output_endpoints: the values that are returned: names, or paths such as
      `c.logits` into NestedMaps.
    sub: the nodes as pairs of a signature and a template or function. A node
      that writes several values returns as many, in a tuple. A child is called
      `sub_` and the first name that it writes.
  """

  input_endpoints: Sequence[str] = REQUIRED
  output_endpoints: Sequence[str] = REQUIRED
  sub: Sequence[tuple[str, containers.Part]] = REQUIRED

  def setup(self):
    containers.refuse_mappings(self)
    signatures = [parse_signature(text) for text, _ in self.sub]
    self.order = _order(
      signatures, tuple(self.input_endpoints), tuple(self.output_endpoints)
    )
    self.signatures = tuple(signatures)
    for signature, (_, part) in zip(signatures, self.sub, strict=True):
      containers.create_part(self, f'sub_{signature.outputs[0]}', part)

  def __call__(self, *args) -> Any:
    """Returns the one output endpoint, or a tuple of several.

    Args:
      *args: one for each input endpoint; arrays or NestedMaps.

    Raises:
      UserError: another number of arguments, or a node that returns another
        number of values than it writes.
    """
    if len(args) != len(self.input_endpoints):
      raise errors.UserError(
        f'Graph: got {len(args)} arguments; expected'
        f' {", ".join(self.input_endpoints)}'
      )
    values = dict(zip(self.input_endpoints, args, strict=True))
    for i in self.order:
      signature = self.signatures[i]
      node = containers.get_part(
        self, f'sub_{signature.outputs[0]}', self.sub[i][1]
      )
      result = node(*(_read(values, path) for path in signature.inputs))
      values.update(_named(signature, self.sub[i][0], result))
    outputs = tuple(_read(values, path) for path in self.output_endpoints)
    return outputs[0] if len(outputs) == 1 else outputs


def _order(
  signatures: list[Signature], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[int, ...]:
  """Returns the nodes' indices, each after those whose values it reads.

  Raises:
    UserError: a name is written twice, read and never written, or an input and
      never read; or the values go in a circle.
  """
  writers: dict[str, int | None] = dict.fromkeys(inputs)
  for i, signature in enumerate(signatures):
    for name in signature.outputs:
      if name in writers:
        raise errors.UserError(
          f'Graph: {name!r} is written twice; expected a name of its own for'
          ' each value'
        )
      writers[name] = i
  read = [path.partition('.')[0] for path in outputs]
  read += [name for signature in signatures for name in signature.sources]
  for name in read:
    if name not in writers:
      raise errors.UserError(
        f'Graph: nothing writes {name!r}' + errors.did_you_mean(name, writers)
      )
  unread = [name for name in inputs if name not in read]
  if unread:
    raise errors.UserError(
      f'Graph: nothing reads the input {", ".join(map(repr, unread))}'
    )
  waits = {
    i: {writers[name] for name in signature.sources} - {None}
    for i, signature in enumerate(signatures)
  }
  try:
    return tuple(graphlib.TopologicalSorter(waits).static_order())
  except graphlib.CycleError as e:
    names = [signatures[i].outputs[0] for i in e.args[1]]
    raise errors.UserError(
      'Graph: the values go in a circle: ' + ' -> '.join(names)
    ) from None


def _read(values: dict[str, Any], path: str) -> Any:
  """Returns the value at a path such as `batch.ids`.

  Raises:
    UserError: there is none.
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
  """Returns a node's values by name."""
  if len(signature.outputs) == 1:
    return {signature.outputs[0]: result}
  values = containers.as_tuple(result)
  if len(values) != len(signature.outputs):
    raise errors.UserError(
      f'Graph: the node {text!r} returned {len(values)} values; expected'
      f' {len(signature.outputs)}'
    )
  return dict(zip(signature.outputs, values, strict=True))

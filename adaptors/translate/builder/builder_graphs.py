"""Translator of `lingvo.core.builder_layers.GraphLayer`."""

from adaptors.translate.builder.builder_layers import below, named
from adaptors.translate.builder.builder_parts import (
  translate_part,
  translates_part,
)
from adaptors.translate.registry import Translated
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat import errors
from pax_compat.layers.graph import graph
from pax_compat.layers.graph.graph_signature import (
  Signature,
  find_dependencies,
  parse_signature,
)


@translates_part('lingvo.core.builder_layers.GraphLayer')
def graph_layer(view: ParamsView) -> Translated | None:
  inputs = list(view.get('input_endpoints'))
  outputs = list(view.get('output_endpoints'))
  nodes = list(view.get('sub'))
  layers = view.get('sub_layers')
  signatures = _signatures(view, nodes, inputs, outputs)
  if signatures is None:
    return None
  if layers:
    templates = [template.Copy() for template in layers]
    field, used = 'sub_layers', [index for _, index in nodes]
    unused = [i for i in range(len(templates)) if i not in used]
    if unused:
      view.issue('sub_layers', f'no node uses the layers {unused}')
      return None
  else:
    templates = [template.Copy() for _, template in nodes]
    field, used = 'sub', list(range(len(nodes)))
  for i, template in enumerate(templates):
    if not template.name:
      first = signatures[used.index(i)].outputs[0]
      template.name = f'sub_layer_{i}' if layers else f'{first}_{i:02d}'
  names = named(view, templates)
  parts = [
    translate_part(view.adopt(template, f'{field}[{i}]'))
    for i, template in enumerate(templates)
  ]
  if None in parts:
    return None
  variables, children = VariableMap(), {}
  for i, (name, part) in enumerate(zip(names, parts, strict=True)):
    # A layer that several nodes use has the name of the first node.
    path = graph.child_name(signatures[used.index(i)])
    variables += part.variables.under(name, path)
    children |= below(name, path, part)
  config = graph.Graph.config(
    input_endpoints=inputs,
    output_endpoints=outputs,
    sub=[
      (text, parts[i].config) for (text, _), i in zip(nodes, used, strict=True)
    ],
    allow_unread_inputs=True,
  )
  return Translated(config, variables, children)


def _signatures(
  view: ParamsView, nodes: list, inputs: list[str], outputs: list[str]
) -> list[Signature] | None:
  """Returns the nodes' signatures; None if they are not a valid graph."""
  try:
    signatures = [parse_signature(text) for text, _ in nodes]
    dependencies = find_dependencies(
      signatures, inputs, outputs, allow_unread_inputs=True
    )
  except errors.UserError as e:
    view.issue('sub', str(e))
    return None
  for i, others in enumerate(dependencies):
    if max(others, default=-1) >= i:
      view.issue(
        f'sub[{i}]',
        f'{nodes[i][0]!r} reads the output of a later node, which Lingvo has'
        ' not computed by then',
      )
  return signatures

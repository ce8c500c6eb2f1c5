"""Ops that make the batches of an input generator irreproducible."""

from typing import Any

from absl import logging

from pax_compat import errors

_READERS = ('GenericInput', 'GenericInputV2Create')
_SEEDLESS = (
  'NonDeterministic',
  'Rng',
  'StatefulRandom',
  'StatefulStandardNormal',
  'StatefulTruncatedNormal',
  'StatefulUniform',
)
_PYTHON = ('PyFunc', 'PyFuncStateless', 'EagerPyFunc')
_TF_DATA = ('IteratorGetNext', 'IteratorGetNextSync', 'OptionalGetValue')


def check(name: str, graph: Any):
  """Raises unless a generator's graph makes the same batches each time.

  Random ops with a seed are fine. Python functions, of which nothing is known,
  are logged.

  Args:
    name: of the input, in messages.
    graph: its TensorFlow graph.

  Raises:
    UserError: it does not.
  """
  graph_def = graph.as_graph_def()
  nodes = list(graph_def.node)
  for function in graph_def.library.function:
    nodes.extend(function.node_def)
  found = sorted({text for node in nodes if (text := _unseeded(node))})
  found += sorted({text for node in nodes if (text := _racing(node))})
  if found:
    raise errors.UserError(
      f'{name}: replay is set, but its batches would differ next time:'
      f' {"; ".join(found)}'
    )
  drawn = sorted({n.op for n in nodes if 'seed' in n.attr})
  if drawn:
    logging.info('%s: drawn with a seed: %s', name, ', '.join(drawn))
  if any(n.op in _PYTHON for n in nodes):
    logging.warning(
      '%s: calls Python. Where that draws random numbers, replay is not exact',
      name,
    )


def _unseeded(node) -> str:
  """Returns how a node is random without a seed; '' if it is not."""
  if node.op.startswith(_SEEDLESS):
    return f'{node.op} ({node.name}) has its own random state'
  if 'seed' not in node.attr:
    return ''
  if node.attr['seed'].i or node.attr['seed2'].i:
    return ''
  return f'{node.op} ({node.name}) draws at random without a seed'


def _racing(node) -> str:
  """Returns which threads of a node race; '' if none do."""
  if node.op in _TF_DATA:
    return f'{node.op} ({node.name}) reads through tf.data'
  if node.op not in _READERS:
    return ''
  threads = node.attr['num_threads'].i
  if threads == 1 and node.attr['require_sequential_order'].b:
    return ''
  return (
    f'{node.op} ({node.name}) reads in {threads} threads, or shuffles, despite'
    ' its Params'
  )

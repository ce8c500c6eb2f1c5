"""What makes the batches of an input generator other ones the next time."""

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
  """Raises unless a generator's graph gives the same batches each time.

  What is drawn at random with a seed is fine. Functions in Python, which
  nothing can be told of, are named in the log.

  Args:
    name: how messages call the input.
    graph: its TensorFlow graph, of one that reads records or makes up examples.

  Raises:
    UserError: it does not.
  """
  graph_def = graph.as_graph_def()
  nodes = list(graph_def.node)
  for function in graph_def.library.function:
    nodes.extend(function.node_def)
  found = sorted({told for node in nodes if (told := _unseeded(node))})
  found += sorted({told for node in nodes if (told := _racing(node))})
  if found:
    raise errors.UserError(
      f'{name}: replay is set, but its batches would be other ones next time:'
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
  """Says what a node draws at random without a seed; '' for nothing."""
  if node.op.startswith(_SEEDLESS):
    return f'{node.op} ({node.name}) keeps random state of its own'
  if 'seed' not in node.attr:
    return ''
  if node.attr['seed'].i or node.attr['seed2'].i:
    return ''
  return f'{node.op} ({node.name}) draws at random without a seed'


def _racing(node) -> str:
  """Says which threads of a node race with each other; '' for none."""
  if node.op in _TF_DATA:
    return f'{node.op} ({node.name}) reads through tf.data'
  if node.op not in _READERS:
    return ''
  threads = node.attr['num_threads'].i
  if threads == 1 and node.attr['require_sequential_order'].b:
    return ''
  return (
    f'{node.op} ({node.name}) reads in {threads} threads, or shuffles, whatever'
    ' its Params say'
  )

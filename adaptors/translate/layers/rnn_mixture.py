"""Translator of Lingvo's `MoeLm`, a mixture of recurrent networks."""

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.rnn.rnn_mixture_lm import RnnMixtureLm


@translates('lingvo.tasks.lm.layers.MoeLm')
def moe_lm(view: ParamsView) -> Translated | None:
  """Returns a mixture of stacks; Lingvo's first stack is the gating network."""
  view.require('packed_input', False)
  vocab, count = view.get('vocab_size'), 1 + view.get('number_of_experts')
  _check(view, 'emb.vocab_size', vocab)
  if view.params.rnns.name:
    view.issue(
      'rnns.name',
      f'{view.params.rnns.name!r} is the name of all stacks, so in Lingvo they'
      ' share variables; that is not translated',
    )
  embedding = registry.translate(view.child('emb'))
  rnns = registry.translate(view.child('rnns'))
  outputs = _output_nodes(view.params.rnns)
  gating = _softmax(view, 'domain_predictor_softmax', outputs, count - 1)
  shared, merges = view.get('shared_emb'), view.get('add_postgating_rnn')
  if merges:
    _check(view, 'merge.vocab_size', vocab)
    head = registry.translate(view.child('merge'))
  else:
    view.ignore('add_postgating_rnn is off', 'merge')
    head = _softmax(view, 'output_softmax', outputs, vocab)
  if None in (embedding, rnns, gating, head):
    return None
  config = RnnMixtureLm.config(
    vocab_size=vocab,
    num_experts=count - 1,
    shared_embedding=shared,
    embedding_tpl=embedding.config,
    rnns_tpl=rnns.config,
    gating_softmax_tpl=gating.config,
    merge_tpl=head.config if merges else None,
  )
  if not merges:
    config.softmax_tpl = head.config
  variables = gating.variables.under(
    'domain_predictor_softmax', 'gating_softmax'
  )
  names = ('merge', 'merge') if merges else ('output_softmax', 'softmax')
  variables += head.variables.under(*names)
  if shared:
    variables += embedding.variables.under('emb', 'embedding')
  for i in range(count):
    variables += _of_stack(i, rnns, None if shared else embedding)
  return Translated(config, variables)


def _of_stack(
  i: int, rnns: Translated, embedding: Translated | None
) -> VariableMap:
  """Returns the variables of a stack, and of its embedding if it has one."""
  variables = rnns.variables.under(f'rnns[{i}]', f'rnns_{i}')
  if embedding is None:
    return variables
  return variables + embedding.variables.under(f'emb[{i}]', f'embedding_{i}')


def _softmax(view: ParamsView, name: str, inputs: int, classes: int):
  """Translates a softmax whose Params Lingvo's class creates."""
  layers = lingvo_runtime.module('lingvo.core.layers')
  template = layers.SimpleFullSoftmax.Params()
  return registry.translate(
    view.adopt(template, name, input_dim=inputs, num_classes=classes)
  )


def _output_nodes(rnns) -> int:
  """Returns the number of output nodes of a stack."""
  if rnns.num_output_nodes > 0:
    return rnns.num_output_nodes
  cells = rnns.cell_tpl
  last = cells[-1] if isinstance(cells, list | tuple) else cells
  return last.num_output_nodes


def _check(view: ParamsView, path: str, vocab: int):
  """Adds an issue if a child has another vocabulary."""
  found = view.params.Get(path)
  if found != vocab:
    view.issue(path, f'{found} is not what the model has, {vocab}')

"""Translators of Lingvo's recurrent layers and language models.

Lingvo's are time-major, ours batch-major.
"""

import dataclasses
import itertools

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import same_init
from adaptors.translate.registry import Translated, translates
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.config import Config
from pax_compat.layers.rnn import recurrent, recurrent_stacks, rnn_cells, rnn_lm
from pax_compat.layers.stochastics import Dropout


@translates('lingvo.core.rnn_cell.LSTMCellSimple')
def lstm(view: ParamsView) -> Translated:
  return _lstm(view, rnn_cells.LstmCellSimple)


@translates('lingvo.core.rnn_cell.LayerNormalizedLSTMCellSimple')
def layer_normalized_lstm(view: ParamsView) -> Translated:
  return _lstm(
    view,
    rnn_cells.LayerNormalizedLstmCellSimple,
    ('ln_scale',),
    layer_norm_epsilon=view.get('layer_norm_epsilon'),
  )


def _lstm(
  view: ParamsView, cls: type, more_weights: tuple[str, ...] = (), **fields
) -> Translated:
  for name in (
    'apply_pruning',
    'apply_pruning_to_projection',
    'gradient_pruning',
    'no_wm_if_compress',
  ):
    view.require(name, False)
  # Lingvo makes its random numbers from a counter of steps.
  view.ignore("random numbers come from the run's own seed", 'deterministic')
  view.require('pruning_hparams_dict', None)
  if view.get('zero_state_init_params').method != 'zeros':
    view.issue(
      'zero_state_init_params', 'a random initial state is not translated'
    )
  same = (
    'inputs_arity',
    'num_input_nodes',
    'num_output_nodes',
    'num_hidden_nodes',
    'reset_cell_state',
    'cell_value_cap',
    'forget_gate_bias',
    'output_nonlinearity',
    'zo_prob',
    'enable_lstm_bias',
    'couple_input_forget_gates',
  )
  config = cls.config(
    bias_init=same_init(view, 'bias_init'),
    params_init=same_init(view, 'params_init'),
    **{name: view.get(name) for name in same},
    **fields,
  )
  weights = ['wm', *more_weights]
  if config.enable_lstm_bias:
    weights.append('b')
  if config.num_hidden_nodes:
    weights.append('w_proj')
  return Translated(config, VariableMap(Variable((w,), w) for w in weights))


@translates('lingvo.core.rnn_layers.FRNN')
def frnn(view: ParamsView) -> Translated | None:
  packed, reverse = view.get('packed_input'), view.get('reverse')
  cell = registry.translate(view.child('cell', reset_cell_state=packed))
  if cell is None:
    return None
  config = recurrent.LstmFrnn.config(cell_tpl=cell.config, reverse=reverse)
  return Translated(config, cell.variables.under('cell', 'cell'))


@translates('lingvo.core.rnn_layers.RNN')
def rnn(view: ParamsView) -> Translated | None:
  """Returns the same as `frnn`; only the loop differs."""
  view.require('packed_input', False)
  view.ignore('the inputs have it', 'sequence_length')
  return frnn(view)


@translates('lingvo.core.rnn_layers.BidirectionalFRNN')
def bidirectional_frnn(view: ParamsView) -> Translated | None:
  names = [view.params.Get(name).name or 'cell' for name in ('fwd', 'bak')]
  if names[0] == names[1]:
    view.issue(
      'bak.name',
      f'both cells are called {names[0]!r}, so in Lingvo they share variables;'
      ' that is not translated',
    )
  directions = {}
  for name, cell, reverse in (('fwd', 'fwd', False), ('bak', 'bak', True)):
    directions[name] = registry.translate(
      view.child(
        'rnn',
        dtype=view.params.dtype,
        reverse=reverse,
        packed_input=view.get('packed_input'),
        cell=view.get(cell).Copy(),
      )
    )
  fwd, bak = directions.values()
  if None in (fwd, bak):
    return None
  config = recurrent.BidirectionalFrnn.config(
    fwd_frnn_tpl=fwd.config, bwd_frnn_tpl=bak.config
  )
  variables = fwd.variables.under('fwd_rnn', 'fwd_frnn')
  return Translated(
    config, variables + bak.variables.under('bak_rnn', 'bwd_frnn')
  )


@translates('lingvo.core.rnn_layers.StackedFRNNLayerByLayer')
def stacked_frnn(view: ParamsView) -> Translated | None:
  num_layers = _num_layers(view)
  keep_prob = registry.translate(view.child('dropout'))
  packed = view.get('packed_input')
  layers = [
    registry.translate(
      view.adopt(
        view.get('rnn_tpl'), f'rnn[{i}]', packed_input=packed, cell=cell
      )
    )
    for i, cell in enumerate(_cells(view, num_layers))
  ]
  residual_layers = _residual_layers(view, num_layers)
  if None in (keep_prob, *layers):
    return None
  config = recurrent_stacks.StackFrnn.config(
    frnn_tpl=[layer.config for layer in layers],
    num_layers=num_layers,
    dropout_tpl=Dropout.config(keep_prob=keep_prob),
    residual_layers=residual_layers,
  )
  variables = VariableMap()
  for i, layer in enumerate(layers):
    variables += layer.variables.under(f'rnn[{i}]', f'frnn_{i}')
  return Translated(config, variables)


@translates('lingvo.core.rnn_layers.StackedBiFRNNLayerByLayer')
def stacked_bi_frnn(view: ParamsView) -> Translated | None:
  view.require('packed_input', False)
  num_layers = _num_layers(view)
  keep_prob = registry.translate(view.child('dropout'))
  layers = [
    registry.translate(
      view.adopt(
        view.get('frnn_tpl'),
        f'rnn[{i}]',
        fwd=cell.Copy().Set(name=f'f_rnn_{i}'),
        bak=cell.Copy().Set(name=f'b_rnn_{i}'),
      )
    )
    for i, cell in enumerate(_cells(view, num_layers, directions=2))
  ]
  residual_layers = _residual_layers(view, num_layers)
  if None in (keep_prob, *layers):
    return None
  config = recurrent_stacks.StackBiFrnn.config(
    # Both directions of a layer have the same template.
    frnn_tpl=[layer.config.fwd_frnn_tpl for layer in layers],
    num_layers=num_layers,
    dropout_tpl=Dropout.config(keep_prob=keep_prob),
    residual_layers=residual_layers,
  )
  variables = VariableMap()
  for i, layer in enumerate(layers):
    own = VariableMap(
      dataclasses.replace(v, jax=v.jax.replace('_frnn/', f'_frnn_{i}/', 1))
      for v in layer.variables
    )
    variables += own.under(f'rnn[{i}]', '')
  return Translated(config, variables)


def _num_layers(view: ParamsView) -> int:
  """Returns the number of layers; adds an issue and returns 1 if it is 0."""
  num_layers = view.get('num_layers')
  if num_layers < 1:
    view.issue('num_layers', f'{num_layers} layers are not translated')
    return 1  # To find further issues.
  return num_layers


def _cells(view: ParamsView, num_layers: int, directions: int = 1) -> list:
  """Returns the Params of each layer's cell.

  Args:
    view: of the stack.
    num_layers: the number of layers.
    directions: 2 if each layer is bidirectional.
  """
  template = view.get('cell_tpl')
  given = template if isinstance(template, list | tuple) else [template]
  cells = [given[min(i, len(given) - 1)].Copy() for i in range(num_layers)]
  inputs, outputs = view.get('num_input_nodes'), view.get('num_output_nodes')
  if outputs > 0:
    cells[-1].num_output_nodes = outputs // directions
  if directions > 1:
    for before, cell in itertools.pairwise(cells):
      cell.num_input_nodes = directions * before.num_output_nodes
  if inputs > 0:
    cells[0].num_input_nodes = inputs
  return cells


def _residual_layers(view: ParamsView, num_layers: int) -> list[int]:
  """Returns which layers' inputs are added to their outputs."""
  start = view.get('skip_start')
  if start < 0:
    return []
  first = 1 if view.get('num_input_nodes') > 0 else 0
  last = num_layers - 1 if view.get('num_output_nodes') > 0 else num_layers
  return list(range(max(start, first), last))


@translates('lingvo.tasks.lm.layers.RnnLmNoEmbedding')
def rnn_lm_no_embedding(view: ParamsView) -> Translated | None:
  """Returns a language model whose inputs are vectors."""
  return _rnn_lm(view, None, VariableMap())


@translates('lingvo.tasks.lm.layers.RnnLm')
def rnn_lm_with_embedding(view: ParamsView) -> Translated | None:
  view.require('emb_softmax', None)
  view.ignore('emb_softmax is not set', 'inject_emb_method')
  view.ignore('the cells have this field', 'couple_input_forget_gates')
  return _rnn_lm_of_tokens(view)


@translates('lingvo.tasks.lm.layers.ConditionalRnnLm')
def conditional_rnn_lm(view: ParamsView) -> Translated | None:
  """Returns a language model that takes a condition in addition to tokens."""
  view.require('packed_input', False)
  return _rnn_lm_of_tokens(view, condition_dims=view.get('condition_dim'))


def _rnn_lm_of_tokens(view: ParamsView, **fields) -> Translated | None:
  view.ignore("random numbers come from the run's own seed", _DROPOUT_SEED)
  _check_classes(view, 'emb.vocab_size')
  embedding = registry.translate(view.child('emb'))
  keep_prob = view.get('embedding_dropout_keep_prob')
  if embedding is None:
    # To find further issues.
    _rnn_lm(view, None, VariableMap())
    return None
  return _rnn_lm(
    view,
    embedding.config,
    embedding.variables.under('emb', 'embedding'),
    embedding_dropout_tpl=Dropout.config(keep_prob=keep_prob),
    **fields,
  )


_DROPOUT_SEED = 'embedding_dropout_seed'


def _check_classes(view: ParamsView, path: str):
  """Adds an issue where a child has another vocabulary."""
  found, vocab = view.params.Get(path), view.params.vocab_size
  if found != vocab:
    view.issue(path, f'{found} is not what the model has, {vocab}')


def _rnn_lm(
  view: ParamsView, embedding: Config | None, variables: VariableMap, **fields
) -> Translated | None:
  view.require('direct_features_dim', 0)
  packed = view.get('packed_input')
  _check_classes(view, 'softmax.num_classes')
  rnns = registry.translate(view.child('rnns', packed_input=packed))
  softmax = registry.translate(view.child('softmax'))
  vocab = view.get('vocab_size')
  if None in (rnns, softmax):
    return None
  config = rnn_lm.RnnLm.config(
    vocab_size=vocab,
    packed_input=packed,
    embedding_tpl=embedding,
    rnns_tpl=rnns.config,
    softmax_tpl=softmax.config,
    **fields,
  )
  variables += rnns.variables.under('rnns', 'rnns')
  return Translated(
    config, variables + softmax.variables.under('softmax', 'softmax')
  )

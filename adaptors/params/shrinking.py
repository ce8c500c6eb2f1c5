"""Shrinks a Lingvo model so that it runs on any machine.

    task = shrinking.shrink(experiment.Task())
    small_input = shrinking.shrink(experiment.Train())

The structure stays: classes and switches, dropout, sharing of embeddings,
shards, stages of a pipeline, optimizer and schedule. Sizes shrink by rules for
names of Params fields:

* All widths (model, hidden and embedding dimensions) are divided by the same
  number and rounded to multiples of the heads. The widest becomes
  `Sizes.width`. In tasks of milan they stay: some are those of features that
  are stored in the data, and of modules.
* Heads, experts, rows of a batch, sequence lengths, and points of a scene are
  limited by `Sizes`; the dimensions of a head follow from those of all heads.
* Grids of cells have a sixteenth of their length and width, if the convolutions
  of a backbone fit what remains; pillars are limited as points. Images that are
  resized get a tenth of that height and width.
* Layers are limited by `Sizes.layers`, but each stage of a pipeline keeps one.
* The vocabulary is limited by `Sizes.vocab_size`. The ids of the input must be
  below it: use a small vocabulary file with real text.
* Sizes that depend on these follow: shards, sampled words and chunks of
  softmaxes, buckets of relative positions and of lengths, predictions of a row,
  micro-batches, and the smallest size that Adafactor factors.
* Reshaped model dimensions are reshaped into twos, and device meshes have one
  device.

Nothing grows, except a head if there are fewer heads. Truncated lists of layers
keep their first ones.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from adaptors.params import params_trees
from pax_compat import errors


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a shrunk model, all but `width` upper limits.

  Attributes:
    width: the widest dimension.
    heads: of an attention.
    layers: of a stack.
    experts: of a mixture.
    vocab_size: at least the 76 ids of Lingvo's `AsciiTokenizer`, and more than
      the ids in the Params.
    batch_size: rows of a batch.
    sequence_length: tokens of a row.
  """

  width: int = 128
  heads: int = 4
  layers: int = 2
  experts: int = 4
  vocab_size: int = 128
  batch_size: int = 4
  sequence_length: int = 16

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not isinstance(value, int) or value < 1:
        raise errors.UserError(
          f'Sizes.{name} is {value!r}; expected an integer of at least 1'
        )


def shrink(params: Any, sizes: Sizes | None = None) -> Any:
  """Returns a small copy of Params of a model, a task, a layer or an input.

  Args:
    params: Lingvo Params. They are not changed.
    sizes: the sizes.

  Returns:
    Params of the same classes.
  """
  params = params.Copy()
  # A list may hold the same Params several times.
  nodes = list(
    {id(node): node for node in params_trees.all_params(params)}.values()
  )
  has_features = any('input_features' in node for node in nodes)
  rules = _Rules(sizes or Sizes(), 1 if has_features else _widest(nodes))
  for node in nodes:
    rules.apply(node)
  return params


def in_float32(params: Any) -> Any:
  """Returns a copy of Params with 32 bits in place of a 16-bit `fprop_dtype`.

  Args:
    params: Lingvo Params. They are not changed.
  """
  params = params.Copy()
  for node in params_trees.all_params(params):
    if 'fprop_dtype' in node and node.fprop_dtype is not None:
      if node.fprop_dtype.size == 2:
        node.fprop_dtype = node.dtype
  return params


# The fields of the rules. None, 0 and -1 mean that a field is not set.
_WIDTHS = (
  'attention_hidden_dim',
  'condition_dim',
  'context_dim',
  'emb_dim',
  'embedding_dim',
  'encoder_out_dim',
  'ff_dim',
  'hidden_dim',
  'hidden_layer_dims',
  'input_dim',
  'lstm_cell_size',
  'mdl_dim',
  'model_dim',
  'moe_hidden_dim',
  'num_hidden_nodes',
  'num_input_nodes',
  'num_output_nodes',
  'output_dim',
  'query_dim',
  'rnn_cell_dim',
  'source_dim',
)
# Heads, and the dimension of each.
_HEADS = (
  ('attention_num_heads', 'attention_key_value_dim'),
  ('num_atten_heads', 'dim_per_head'),
  ('num_heads', 'dim_per_head'),
)
_VOCABULARIES = ('num_classes', 'target_vocab_size', 'vocab_size')
_LENGTHS = (
  'max_length',
  'max_seq_len',
  'max_sequence_length',
  'seq_len',
  'sequence_length',
  'source_max_length',
  'target_max_length',
)
_LAYERS = (
  'num_layers',
  'num_lstm_layers',
  'num_trans_layers',
  'num_transformer_layers',
  'rnn_layers',
)
# Points and boxes of a scene; at most the length of a row.
_POINTS = (
  'max_num_points',
  'num_cell_centers',
  'num_centers',
  'num_neighbors',
  'num_points_per_cell',
  'max_num_boxes',
  'num_pillars',
)
# A grid of cells shrinks by the first if it is a multiple of both: a backbone
# halves it up to three times.
_GRID, _HALVED = 16, 8
# Resized images shrink by this.
_IMAGES = 10
# At most the rows of a batch.
_ROWS = ('batch_size', 'num_groups', 'num_spmd_pipeline_microbatches')
_BUCKETS, _DISTANCE = (
  'relative_attention_num_buckets',
  'relative_attention_max_distance',
)


class _Rules:
  """The rules for one model."""

  def __init__(self, sizes: Sizes, widest: int):
    self._sizes = sizes
    self._factor = max(1.0, widest / sizes.width)

  def apply(self, node: Any):
    """Shrinks the fields of one node of a tree of Params."""
    self._heads(node)
    self._widths(node)
    self._vocabulary(node)
    self._batch(node)
    self._layers(node)
    self._pipeline(node)
    self._experts(node)
    self._positions(node)
    self._mesh(node)
    self._grid(node)
    self._adafactor(node)

  def _width(self, value: int) -> int:
    """Returns the new width: a multiple of the heads if it shrinks."""
    if self._factor == 1.0:
      return value
    unit = self._sizes.heads
    return min(value, unit * max(1, round(value / self._factor / unit)))

  def _widths(self, node: Any):
    for name in _set_fields(node, _WIDTHS):
      value = node.Get(name)
      if isinstance(value, (list, tuple)):
        node.Set(**{name: type(value)(map(self._width, value))})
      else:
        node.Set(**{name: self._width(value)})

  def _heads(self, node: Any):
    for heads, dimension in _HEADS:
      for name in _set_fields(node, (heads,)):
        before, after = node.Get(name), min(node.Get(name), self._sizes.heads)
        node.Set(**{name: after})
        for of_head in _set_fields(node, (dimension,)):
          whole = self._width(before * node.Get(of_head))
          node.Set(**{of_head: max(1, whole // after)})
    _cap(node, self._sizes.heads, 'attention_num_memory_heads')

  def _vocabulary(self, node: Any):
    _cap(node, self._sizes.vocab_size, *_VOCABULARIES)
    for name in _set_fields(node, ('num_shards',)):
      if _set_fields(node, ('num_classes',)):
        shards = math.gcd(node.num_shards, node.num_classes)
        node.Set(**{name: shards})
    _cap(node, max(1, self._sizes.vocab_size // 8), 'num_sampled')
    # A row has several chunks; the last one is smaller.
    _cap(node, max(1, 3 * self._sizes.sequence_length // 8), 'chunk_size')

  def _batch(self, node: Any):
    rows, length = self._sizes.batch_size, self._sizes.sequence_length
    for name in _set_fields(node, ('max_predictions_per_seq',)):
      whole = node.max_sequence_length
      share = node.Get(name) * min(length, whole) // whole
      node.Set(**{name: max(1, share)})
    _cap(node, length, *_LENGTHS)
    _cap(node, length, *_POINTS)
    _cap(node, rows, *_ROWS)
    _cap(node, 4 * rows, 'prepacking_batch_size')
    if _set_fields(node, ('bucket_upper_bound', 'bucket_batch_limit')):
      # The first bucket that reaches the limit replaces all longer ones.
      limits = {}
      for bound, limit in zip(
        node.bucket_upper_bound, node.bucket_batch_limit, strict=True
      ):
        limits.setdefault(min(bound, length), min(limit, rows))
      node.bucket_upper_bound = list(limits)
      node.bucket_batch_limit = list(limits.values())

  def _layers(self, node: Any):
    has_stages = _set_fields(node, ('num_spmd_pipeline_stages',))
    stages = node.num_spmd_pipeline_stages if has_stages else 1
    for name in _set_fields(node, _LAYERS):
      before = node.Get(name)
      after = min(before, _multiple_of(stages, self._sizes.layers))
      node.Set(**{name: after})
      for other, value in node.IterParams():
        if _is_list_of_params(value) and len(value) == before:
          node.Set(**{other: value[:after]})

  def _pipeline(self, node: Any):
    """Shrinks a GPipe stack to one or more layers in each part."""
    if 'splits' not in node:
      return
    splits = node.splits
    parts = len(splits) if isinstance(splits, (list, tuple)) else splits
    stacks = _set_fields(node, ('num_encoder_layers', 'num_decoder_layers'))
    for name in stacks:
      layers = min(node.Get(name), _multiple_of(parts, self._sizes.layers))
      node.Set(**{name: layers})
    if isinstance(splits, (list, tuple)):
      layers = sum(node.Get(name) for name in stacks)
      ends = [layers * (i + 1) // parts for i in range(parts)]
      node.splits = type(splits)(ends)
    rows = self._sizes.batch_size
    _cap(node, rows, 'num_micro_batches')
    for name in _set_fields(node, ('micro_batch_size',)):
      node.Set(**{name: max(1, rows // node.num_micro_batches)})

  def _experts(self, node: Any):
    _cap(node, self._sizes.experts, 'e_dim', 'number_of_experts', 'num_experts')
    tokens = self._sizes.batch_size * self._sizes.sequence_length
    _cap(node, max(1, tokens // 2), 'c_dim')

  def _positions(self, node: Any):
    """Shrinks relative positions; distant ones still share buckets."""
    length = self._sizes.sequence_length
    _cap(node, max(4, length // 2), _BUCKETS)
    _cap(node, max(4, length), _DISTANCE)

  def _mesh(self, node: Any):
    for name in _set_fields(node, ('device_mesh', 'device_mesh_shape')):
      value = node.Get(name)
      if name == 'device_mesh':
        node.device_mesh = np.arange(1).reshape([1] * np.ndim(value))
      else:
        node.device_mesh_shape = [1] * len(value)
    for name in _set_fields(node, ('model_dim_reshape_segments',)):
      value = node.Get(name)
      twos = [min(n, 2) for n in value] if isinstance(value, list) else 2
      node.Set(**{name: twos if isinstance(value, list) else min(value, 2)})

  def _grid(self, node: Any):
    """Shrinks grids of cells of a scene by the same factor, and its images."""
    for name in _set_fields(node, ('grid_size',)):
      value = node.Get(name)
      if isinstance(value, (list, tuple)) and len(value) == 3:
        x, y, z = value
        if not (x % (_GRID * _HALVED) or y % (_GRID * _HALVED)):
          node.Set(**{name: type(value)((x // _GRID, y // _GRID, z))})
    if 'resize_ratio' in node and node.resize_ratio > 1 / _IMAGES:
      node.resize_ratio = node.resize_ratio / _IMAGES

  def _adafactor(self, node: Any):
    if self._factor > 1.0:
      _cap(node, max(2, self._sizes.width // 16), 'min_dim_size_to_factor')


def _widest(nodes: list[Any]) -> int:
  """Returns the widest dimension of all."""
  widths = [1]
  for node in nodes:
    for name in _set_fields(node, _WIDTHS):
      value = node.Get(name)
      widths += value if isinstance(value, (list, tuple)) else [value]
    for heads, dimension in _HEADS:
      if _set_fields(node, (heads,)) and _set_fields(node, (dimension,)):
        widths.append(node.Get(heads) * node.Get(dimension))
  return max(widths)


def _set_fields(node: Any, names: tuple[str, ...]) -> list[str]:
  """Returns the names of fields that a node has and that are set."""
  return [n for n in names if n in node and _is_set(node.Get(n))]


def _is_set(value: Any) -> bool:
  if isinstance(value, np.ndarray):
    return value.size > 0
  if isinstance(value, (list, tuple)):
    return bool(value) and all(map(_is_set, value))
  return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _cap(node: Any, most: int, *names: str):
  """Limits numbers to `most`."""
  for name in _set_fields(node, names):
    node.Set(**{name: min(node.Get(name), most)})


def _multiple_of(parts: int, layers: int) -> int:
  """Returns the least multiple that is at least `layers`."""
  return -(-layers // parts) * parts


def _is_list_of_params(value: Any) -> bool:
  return isinstance(value, (list, tuple)) and any(
    params_trees.is_params(item) for item in value
  )

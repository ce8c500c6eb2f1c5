"""Synthetic batches with the fields of a task's input, without its data.

Language models of Lingvo get random ids. For other tasks the fields and their
shapes are traced from the input, and filled by their names and types.

Shapes: B batch, T time.
"""

from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.lingvo_parity import batches as batches_lib
from adaptors.lingvo_parity import input_specs, synthetic_fields
from adaptors.params import params_trees
from adaptors.translate.view import class_path
from pax_compat import errors
from pax_compat.nested_map import NestedMap

_FIRST_ID = synthetic_fields.FIRST_ID
_VOCABULARIES = ('vocab_size', 'num_classes', 'target_vocab_size')
_LENGTHS = (
  'bucket_upper_bound',
  'max_sequence_length',
  'seq_len',
  'seq_length',
)
_ROWS = ('bucket_batch_limit', 'batch_size')
_LANGUAGE_MODELS = (
  ('lingvo.core.gshard_builder', 'UniTransformer'),
  ('lingvo.core.gshard_builder', 'BertTransformer'),
  ('lingvo.tasks.lm.model', 'LanguageModel'),
)


def batches(params: Any, count: int = 1, *, seed: int = 0) -> list[NestedMap]:
  """Returns synthetic batches for a task, as its input would.

  Args:
    params: of the task, with its `input`; not modified. Shrink them first for
      small batches.
    count: how many batches of one shape.
    seed: of the first batch; each has the next.

  Raises:
    UserError: the fields of the input's batches cannot be traced.
  """
  if _is_language_model(params) and _has_shape(params.input):
    rows, length = shape(params.input)
    return [
      batches_lib.nested(batch(params, rows, length, seed=seed + i))
      for i in range(count)
    ]
  specs = input_specs.trace(params.input)
  num_ids = vocab_size(params)
  return [synthetic_fields.fill(specs, num_ids, seed + i) for i in range(count)]


def vocab_size(params: Any) -> int:
  """Returns the smallest vocabulary size in a task; 2 without any."""
  sizes = [
    node.Get(name)
    for node in params_trees.all_params(params)
    for name in _VOCABULARIES
    if name in node and isinstance(node.Get(name), int) and node.Get(name) > 0
  ]
  return min(sizes, default=2)


def shape(params: Any) -> tuple[int, int]:
  """Returns [B, T] of the longest batches of an input.

  Args:
    params: of the input.

  Raises:
    UserError: its Params do not determine them.
  """
  found = []
  for names in (_ROWS, _LENGTHS):
    values = [params.Get(n) for n in names if n in params and params.Get(n)]
    if not values:
      raise errors.UserError(
        f'{class_path(params.cls)} has no {" or ".join(names)}, so synthetic'
        ' batches cannot be made; expected a run without --synthetic'
      )
    value = values[0]
    found.append(int(value[-1] if isinstance(value, (list, tuple)) else value))
  return found[0], found[1]


def batch(
  params: Any, rows: int, length: int, *, seed: int = 0
) -> dict[str, np.ndarray]:
  """Returns a batch for a task as arrays by dotted name.

  The first row is full; the others end with padding, or contain two segments if
  the task takes packed text.

  Args:
    params: of the task.
    rows: B.
    length: T.
    seed: of the ids.

  Raises:
    UserError: the fields of the task's batches are not known.
  """
  rng = np.random.default_rng(seed)
  ids = rng.integers(_FIRST_ID, vocab_size(params), (rows, length))
  ids = ids.astype(np.int32)
  ends = np.linspace(length, length / 2, rows).astype(int)[:, None]
  positions = np.broadcast_to(np.arange(length), ids.shape)
  paddings = (positions >= ends).astype(np.float32)
  segments = dict(
    segment_ids=np.where(positions < ends, 1, 2).astype(np.int32),
    segment_pos=np.where(positions < ends, positions, positions - ends).astype(
      np.int32
    ),
  )
  labels = np.roll(ids, -1, axis=1)
  if _is_a(params, 'lingvo.core.gshard_builder', 'UniTransformer'):
    fields = dict(ids=ids, labels=labels, **segments)
    return {f'tgt.{name}': x for name, x in fields.items()}
  if _is_a(params, 'lingvo.core.gshard_builder', 'BertTransformer'):
    return _masked(ids, paddings, positions, params.mask_token_id, rng)
  if _is_a(params, 'lingvo.tasks.mt.model', 'MTBaseModel'):
    return _sentence_pairs(params, ids, labels, paddings, segments)
  if _is_a(params, 'lingvo.tasks.image.classifier', 'BaseClassifier'):
    return _images(params, rows, rng)
  if not _is_a(params, 'lingvo.tasks.lm.model', 'LanguageModel'):
    raise errors.UserError(
      f'{class_path(params.cls)}: synthetic batches exist only for'
      ' LanguageModel, UniTransformer, BertTransformer, MTBaseModel,'
      ' BaseClassifier and their subclasses; expected a run without --synthetic'
    )
  is_packed = params.packed_input
  if is_packed:
    paddings = np.zeros_like(paddings)
  return dict(
    ids=ids,
    labels=labels,
    paddings=paddings,
    weights=1 - paddings,
    word_count=ends[:, 0].astype(np.int32),
    **(segments if is_packed else {}),
  )


def _sentence_pairs(params, ids, labels, paddings, segments):
  """Returns a batch of sentences, and translations of the same lengths."""
  is_packed = params.decoder.packed_input
  if is_packed:
    paddings = np.zeros_like(paddings)
  common = dict(ids=ids, paddings=paddings, **(segments if is_packed else {}))
  target = dict(common, labels=labels, weights=1 - paddings)
  return {f'src.{name}': x for name, x in common.items()} | {
    f'tgt.{name}': x for name, x in target.items()
  }


def _images(params, rows: int, rng):
  """Returns a batch of images with their classes."""
  shape = (rows, *params.input.data_shape)
  return dict(
    data=rng.normal(size=shape).astype(np.float32),
    label=rng.integers(0, params.softmax.num_classes, rows, np.int32),
    weight=np.ones(rows, np.float32),
  )


def _masked(ids, paddings, positions, mask_id: int, rng):
  """Returns a batch with randomly masked ids."""
  ids = np.where(ids == mask_id, _FIRST_ID, ids)
  masked = (rng.random(ids.shape) < 0.2) * (1 - paddings)
  return {
    'ids': ids,
    'masked_ids': np.where(masked > 0, mask_id, ids).astype(np.int32),
    'masked_pos': masked.astype(np.float32),
    'segment_ids': (1 - paddings).astype(np.int32),
    'segment_pos': (positions * (1 - paddings)).astype(np.int32),
  }


def _is_language_model(params: Any) -> bool:
  """Whether `batch` knows the fields of a task's batches."""
  return any(_is_a(params, *name) for name in _LANGUAGE_MODELS)


def _has_shape(params: Any) -> bool:
  """Whether Params of an input determine the shape of its batches."""
  return all(
    any(params_trees.get(params, name) for name in names)
    for names in (_ROWS, _LENGTHS)
  )


def _is_a(params: Any, module: str, name: str) -> bool:
  return issubclass(params.cls, getattr(lingvo_runtime.module(module), name))

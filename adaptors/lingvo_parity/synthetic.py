"""Synthetic batches of random ids, with the fields of a language model's input.

Shapes: B batch, T time.
"""

from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.params import params_trees
from adaptors.translate.view import class_path
from pax_compat import errors

# Lower ids are special: padding, ends of sentences, unknown words.
_FIRST_ID = 4
_VOCABULARIES = ('vocab_size', 'num_classes', 'target_vocab_size')
_LENGTHS = (
  'bucket_upper_bound',
  'max_sequence_length',
  'seq_len',
  'seq_length',
)
_ROWS = ('bucket_batch_limit', 'batch_size')


def vocab_size(params: Any) -> int:
  """Returns the smallest vocabulary size in a task."""
  sizes = [
    node.Get(name)
    for node in params_trees.all_params(params)
    for name in _VOCABULARIES
    if name in node and isinstance(node.Get(name), int) and node.Get(name) > 0
  ]
  return min(sizes)


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
  if not _is_a(params, 'lingvo.tasks.lm.model', 'LanguageModel'):
    raise errors.UserError(
      f'{class_path(params.cls)}: synthetic batches exist only for'
      ' LanguageModel, UniTransformer, BertTransformer and their subclasses;'
      ' expected a run without --synthetic'
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


def _is_a(params: Any, module: str, name: str) -> bool:
  return issubclass(params.cls, getattr(lingvo_runtime.module(module), name))

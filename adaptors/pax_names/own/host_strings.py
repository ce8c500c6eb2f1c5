"""Strings on the host: `paxml.host_callback` and `paxml.xla_passthrough`.

For callbacks and loops of one's own; the trainer leaves strings of a batch on
the host by itself.
"""

import collections
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pax_compat import errors


class Repository:
  """Strings that are kept on the host, each with a number for the model.

  Threads may share it. If more than `max_size` strings are kept, those that
  were added first are removed.
  """

  MAX_SIZE = 10_000

  def __init__(self, max_size: int = MAX_SIZE):
    self._max_size = max_size
    self._lock = threading.Lock()
    self._strings: collections.OrderedDict[int, str] = collections.OrderedDict()
    self._next = 0

  def add(self, value: str) -> int:
    """Keeps a string; returns its number, which no other string gets."""
    with self._lock:
      number, self._next = self._next, self._next + 1
      self._strings[number] = value
      while len(self._strings) > self._max_size:
        self._strings.popitem(last=False)
      return number

  def pop(self, value_id: int) -> bool:
    """Removes the string of a number; returns whether there was one."""
    with self._lock:
      return self._strings.pop(value_id, None) is not None

  def get(self, value_id: int) -> str:
    """Returns the string of a number.

    Raises:
      KeyError: the number is unknown.
    """
    with self._lock:
      return self._strings[value_id]

  @property
  def size(self) -> int:
    """The number of strings that are kept."""
    with self._lock:
      return len(self._strings)


_lock = threading.Lock()
_by_namespace: dict[str, Repository] = {}


def repository(namespace: str) -> Repository:
  """Returns the repository of a namespace, the same one at each call."""
  with _lock:
    return _by_namespace.setdefault(namespace, Repository())


def split_out_xla_unsupported_batch(
  batch: Mapping[str, Any], partitioning_spec: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any], Any]:
  """Splits a batch into what XLA computes with, and strings and objects.

  Args:
    batch: nested, with arrays [B, ...] as leaves; not changed.
    partitioning_spec: a value for each leaf, of the same structure; or None.

  Returns:
    The batch without its strings, those with the same structure, and the values
    without those of strings. Without strings: the batch itself, an empty dict,
    and `partitioning_spec` itself.

  Raises:
    UserError: there are strings, and several processes.
  """
  strings = _strings_of(batch)
  if not strings:
    return batch, {}, partitioning_spec
  if jax.process_count() > 1:
    raise errors.UserError(
      f'the batch has strings ({", ".join(strings)}) and there are'
      f' {jax.process_count()} processes; expected one process, or a decode'
      ' dataset of an experiment, whose strings are gathered'
    )
  spec = partitioning_spec and _without(partitioning_spec, strings)
  return _without(batch, strings), strings, spec


def merge_back_xla_unsupported_batch(
  out: dict[str, Any], xla_unsupported_batch: Mapping[str, Any]
) -> None:
  """Adds the strings of a batch to its outputs, at their place.

  Args:
    out: nested outputs, which are changed.
    xla_unsupported_batch: of `split_out_xla_unsupported_batch`.
  """
  for key, value in xla_unsupported_batch.items():
    if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
      merge_back_xla_unsupported_batch(out[key], value)
    else:
      out[key] = value


def _strings_of(batch: Mapping[str, Any]) -> dict[str, Any]:
  found = {}
  for key, value in batch.items():
    if isinstance(value, Mapping):
      if inner := _strings_of(value):
        found[key] = inner
    elif np.asarray(value).dtype.kind in 'OSU':
      found[key] = value
  return found


def _without(fields: Mapping[str, Any], strings: Mapping[str, Any]) -> Any:
  """Returns nested fields without those that are strings."""
  kept = {}
  for key, value in fields.items():
    if key not in strings:
      kept[key] = value
    elif isinstance(strings[key], Mapping):
      if inner := _without(value, strings[key]):
        kept[key] = inner
  return type(fields)(kept)

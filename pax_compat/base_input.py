"""Inputs: where a program gets its batches from."""

import functools
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.input_core import (
  example_rows,
  host_fields,
  input_fields,
  token_ids,
)
from pax_compat.layer_core import sharding
from pax_compat.nested_map import NestedMap


class BaseInput(config_lib.Configurable):
  """An iterator over batches, one instance for each process.

  Attributes:
    name: names the dataset in logs, metrics and summary folders; see
      `default_name`.
    batch_size: examples in a batch of this process; None where the input
      decides by itself.
    num_infeed_hosts: how many processes feed; the trainer sets it.
    infeed_host_index: which of them this one is; the trainer sets it.
    input_random_seed: seed for shuffling.
    reset_for_eval: whether each evaluation begins at the first batch.
    eval_loop_num_batches: how many batches an evaluation has; None or -1 for
      all that there are. See below.
    is_training: whether this is the training input.
    input_checkpointing_enabled: whether the run demands that this input tells
      its state; the trainer sets it, to `enable_input_checkpointing` of
      `task_settings.Train` on the training input. One whose state is costly may
      have it then only.
    known_ids: how many ids of tokens the model knows, from 0 on; the trainer
      sets it, where that is certain. `get_next_padded` refuses a batch with
      another one in a leaf called `ids`.
    batch_padding_size: rows that `get_next_padded` adds to each batch, of zeros
      and with weight 0.

  | an evaluation reads                    | `eval_loop_num_batches` | resets |
  | -------------------------------------- | ----------------------- | ------ |
  | all of the data, which must have an end| not set, None or -1     | True   |
  | the first N batches, the same each time| N                       | True   |
  | the next N batches, on a rolling basis | N, or 1 if not set      | False  |
  | (refused: it would end once only)      | None or -1              | False  |

  Raises:
    UserError: the name has other characters than letters, digits and `.:_+-`,
      `eval_loop_num_batches` is 0 or below -1, or all of the data is to be read
      without `reset_for_eval`; a batch has no example, or this host is none of
      those that there are.
  """

  name: str = input_fields.UNSET_NAME
  batch_size: int | None = None
  num_infeed_hosts: int = 1
  infeed_host_index: int = 0
  input_random_seed: int | None = None
  reset_for_eval: bool = False
  eval_loop_num_batches: int | None = input_fields.UNSET_ONE
  is_training: bool = False
  input_checkpointing_enabled: bool = False
  known_ids: int | None = None
  batch_padding_size: int = 0

  # The batch that was peeked at, and the state before it.
  _peeked = None
  _state_before = None

  # Whether the fields of the first batch were found to be arrays.
  _has_arrays = False

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    # A batch that was peeked at is of the time before a reset, whoever wrote
    # the reset.
    if 'reset' in vars(cls):
      cls.reset = _forgetting(cls.reset)

  def __post_init__(self):
    input_fields.give_name(self)
    self.eval_loop_num_batches = input_fields.eval_batches(self)
    self.check_fields(self)

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state is the same on all hosts, for any number of hosts."""
    return False

  @classmethod
  def check_fields(cls, fields: 'config_lib.Config | BaseInput'):
    """Checks the fields that every input has, before any data is read.

    Args:
      fields: a config of this class, or an input.

    Raises:
      UserError: they are none of what the class says of them.
    """
    input_fields.check(
      fields,
      told=cls.__name__,
      can_reset=cls.reset is not BaseInput.reset,
    )

  @classmethod
  def default_name(cls, fields: 'config_lib.Config | BaseInput') -> str:
    """Returns the name of an input that is given none.

    Args:
      fields: a config of this class, or an input.
    """
    return 'train' if fields.is_training else 'input'

  @classmethod
  def get_batch_size(cls, params: config_lib.Config) -> int:
    """Returns how many examples of one process a batch has.

    Args:
      params: a config of this class.

    Raises:
      UserError: it does not say.
    """
    if params.batch_size is None:
      raise errors.UserError(
        f'{cls.__name__}.batch_size of {params.name} is not set; expected the'
        ' number of examples in a batch of one process'
      )
    return params.batch_size

  @classmethod
  def get_global_batch_size(cls, params: config_lib.Config) -> int:
    """Returns how many examples of all processes a batch has."""
    return cls.get_batch_size(params) * params.num_infeed_hosts

  def get_next(self) -> NestedMap:
    """Returns the next batch: numpy arrays with the batch axis first.

    Raises:
      StopIteration: the data is at its end. TensorFlow's `OutOfRangeError`
        means the same.
    """
    raise errors.UserError(
      f'{type(self).__name__} has no method `get_next`; expected one that'
      ' returns the next batch'
    )

  def get_next_padded(self) -> NestedMap:
    """Returns the batch that was peeked at, or else the next one, padded.

    Raises:
      StopIteration: the data is at its end.
      UserError: the batch has an id that the model does not know.
    """
    if self._peeked is not None:
      batch = self._peeked
      self._forget()
      return batch
    batch = _next_batch(self)
    if self.known_ids is not None:
      told = f'{type(self).__name__} {self.name!r}'
      token_ids.check_known(told, batch, self.known_ids)
    return self._padded(batch) if self.batch_padding_size else batch

  def peek_padded(self) -> NestedMap | None:
    """Returns what `get_next_padded` returns next; None at the end."""
    if self._peeked is None:
      before = self._state_or_none()
      try:
        self._peeked = self.get_next_padded()
      except StopIteration:
        return None
      self._state_before = before
    return self._peeked

  def _padded(self, batch: NestedMap) -> NestedMap:
    """Returns a batch with rows added, of zeros and without weight."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    batch = example_rows.weighed(batch, rows)
    return jax.tree.map(self._with_zeros, batch)

  def _with_zeros(self, x: np.ndarray) -> np.ndarray:
    return host_fields.extended(x, self.batch_padding_size)

  def _forget(self):
    self._peeked = self._state_before = None

  def reset(self):
    """Starts again at the first batch. Called on eval inputs only.

    What was peeked at is forgotten, also where a subclass has a `reset`.
    """
    raise NotImplementedError(type(self).__name__)

  def get_state(self) -> bytes:
    """Returns where the input stands: which batch comes next.

    That is the one that was peeked at, if there is one.

    Raises:
      UserError: the input cannot tell.
    """
    if self._peeked is None:
      return self._get_state_internal()
    if self._state_before is None:
      raise errors.UserError(
        f'{type(self).__name__} {self.name!r} was peeked at, and could not tell'
        ' where it stood; expected get_state() before peek_padded()'
      )
    return self._state_before

  def set_state(self, state: bytes):
    """Goes to where `get_state` was asked.

    Raises:
      UserError: the input cannot, or the state is not one of its own.
    """
    self._forget()
    self._set_state_internal(state)

  def save(self, path: os.PathLike | str):
    """Writes the state to a file."""
    epath.Path(path).write_bytes(self.get_state())

  def restore(self, path: os.PathLike | str):
    """Reads the state from a file.

    Raises:
      UserError: there is no such file, or as for `set_state`.
    """
    try:
      state = epath.Path(path).read_bytes()
    except OSError as e:
      raise errors.UserError(
        f'the state of {type(self).__name__} {self.name!r} cannot be read from'
        f' {path}: {e}'
      ) from e
    self.set_state(state)

  def _get_state_internal(self) -> bytes:
    """Returns the state; for subclasses to write.

    It is asked after every batch of a training input, in the thread that reads.
    """
    raise NotImplementedError(type(self).__name__)

  def _set_state_internal(self, state: bytes):
    """Takes a state; for subclasses to write."""
    raise NotImplementedError(type(self).__name__)

  def _state_or_none(self) -> bytes | None:
    try:
      return self._get_state_internal()
    except (NotImplementedError, errors.UserError):
      return None

  def parts(self) -> Collection['BaseInput']:
    """Returns the inputs that this one is made of; for subclasses to write."""
    return ()

  def close(self):
    """Frees threads and files. The input cannot be used afterwards."""
    for part in self.parts():
      part.close()

  def interrupt(self):
    """Ends a `get_next` that waits for other processes, in another thread.

    It raises then. The input is only closed afterwards.
    """
    for part in self.parts():
      part.interrupt()

  def raise_if_broken(self):
    """Raises what was found out of the data while a `get_next` waits for it.

    A reader may wait for ever for what is damaged.

    Raises:
      UserError: the data is damaged.
    """
    for part in self.parts():
      part.raise_if_broken()

  def resume_at(self, step: int):
    """Tells a training input that `step` batches were consumed before.

    Called once, before the first `get_next`, when a run continues from a
    checkpoint that has no state of this input, or none that fits. An input that
    can continue exactly there does; one that cannot says in a log line what it
    does instead.
    """
    del step

  def after_restart(self) -> str:
    """Says in words where this input goes on after a restart, without a state.

    That is said at the start of a run, of a training input that has none.
    """
    if type(self).resume_at is BaseInput.resume_at:
      return 'it starts at its first batch again'
    return 'it goes on where its resume_at(step) puts it'

  def example_batch(self, first: NestedMap) -> NestedMap:
    """Returns a batch that a model is initialised with; only shapes matter.

    It is `first`, unless not every batch reaches all of the model's weights.

    Args:
      first: the first batch of `get_next`.
    """
    return first

  def batch_specs(self) -> NestedMap | None:
    """Returns what a batch is like, where that is known without reading one.

    Returns:
      A `jax.ShapeDtypeStruct` for each field of what `get_next_padded` returns,
      less those that stay on the host; None where only a batch can tell.
    """
    return None

  def specs_of(self, batch: NestedMap, *, rows: int | None = None) -> NestedMap:
    """Returns what a batch is like, as `batch_specs` does.

    Args:
      batch: arrays [B, ...], or anything that has a shape and a dtype.
      rows: how many rows there are; None for B.
    """
    for_devices = host_fields.for_devices(batch, self.is_host_field)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape if rows is None else (rows, *x.shape[1:]), x.dtype
      ),
      for_devices,
    )

  def order_digest(self) -> bytes | None:
    """Returns a few bytes that tell what was read since the last reset.

    For inputs of which every process reads everything, in the same order: the
    trainer compares them between processes. None where processes read different
    data, as here.
    """
    return None

  def is_host_field(self, path: str, leaf: np.ndarray) -> bool:
    """Returns whether a leaf of a batch stays on the host.

    It is kept beside the arrays then, for what is worked out of each example
    after an evaluation or decoding; training does not see it. Here these are
    texts, as no device takes them.

    Args:
      path: of the leaf, dotted.
      leaf: [B, ...].
    """
    del path
    return leaf.dtype.kind in 'OSU'

  def has_example_metrics(self, kind: str) -> bool:
    """Returns whether this input makes metrics of all examples together.

    Args:
      kind: 'decode', of what is decoded, or 'eval', of what is said of each
        example while evaluating.
    """
    del kind
    return False

  def example_metrics(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> dict[str, Any]:
    """Returns metrics of all examples of an evaluation or decoding together.

    Called on the first process, where `has_example_metrics`.

    Args:
      kind: as of `has_example_metrics`.
      examples: for each row of all hosts' batches that counts, the fields that
        stayed on the host, by dotted path, and what the model made of it: the
        value of the pair that `process_decode_out` returned for it, or its row
        of each per-example output.

    Returns:
      The metrics by name, as values that a `MetricWriter` takes.
    """
    raise NotImplementedError(type(self).__name__)

  def example_lines(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> Iterable[dict[str, Any]]:
    """Returns what is to be written down of each example; here nothing.

    Called on the first process after `example_metrics`, with the same examples.

    Args:
      kind: as of `example_metrics`.
      examples: as of `example_metrics`.

    Returns:
      The fields of a line for each example.
    """
    del kind, examples
    return ()

  def input_metrics(self) -> dict[str, float]:
    """Returns what is to be written of this input itself.

    Here that is what its parts tell, added up. It is asked whenever metrics of
    its dataset are written, in any thread. What is written is what the first
    process tells.

    Returns:
      Numbers by name, such as `input/skipped_records`.
    """
    sums = Counter()
    for part in self.parts():
      sums.update(part.input_metrics())
    return dict(sums)

  def reshard_for_pmap(self, arrays: Any) -> Any:
    """Returns a batch that `jax.pmap` splits over this process's devices.

    Args:
      arrays: leaves [B, ...].

    Returns:
      Leaves [devices, B / devices, ...].

    Raises:
      UserError: the batch cannot be divided over the devices.
    """
    count = jax.local_device_count()

    return jax.tree.map(
      lambda x: x.reshape(self._shape_in_parts(x, count)), arrays
    )

  def _shape_in_parts(self, x: Any, count: int) -> tuple[int, ...]:
    """Returns the shape [count, B / count, ...] for a leaf [B, ...]."""
    if not x.ndim or x.shape[0] % count:
      raise errors.UserError(
        f'{self.name}: a leaf of a batch has the shape {x.shape}; expected its'
        f' first dimension to be a multiple of {count}'
      )
    return (count, x.shape[0] // count, *x.shape[1:])

  def reshard_for_spmd(
    self, arrays: Any, global_mesh: jax.sharding.Mesh, pspecs: Any
  ) -> Any:
    """Returns the batch of all hosts, of which this one has a part.

    Args:
      arrays: leaves [B, ...] of this host.
      global_mesh: of all devices.
      pspecs: a `jax.sharding.PartitionSpec` for each leaf.

    Returns:
      Leaves [B * num_infeed_hosts, ...] on the devices.
    """

    def put(x, spec):
      split = jax.sharding.NamedSharding(global_mesh, spec)
      return sharding.array_of_hosts(x, split, self.num_infeed_hosts)

    return jax.tree.map(put, arrays, pspecs)

  def tokenizers(self) -> dict[str, str]:
    """Says how this input makes tokens of texts: descriptions by name.

    Inputs with equal descriptions make equal tokens. Here there are none.
    """
    return {}

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Makes texts of tokens; here the numbers, for an input that has no words.

    Args:
      ids: [B, T], int.
      lengths: [B], int, how many of a row's tokens count.
      key: which tokenizer, for inputs that have several, such as 'src' and
        'tgt'; None for the only one.

    Returns:
      B texts.
    """
    del key
    return [
      ' '.join(str(token) for token in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]


class BaseInputSpecsProvider(config_lib.Configurable):
  """Knows what the training batches of an experiment are like."""

  def get_input_specs(self) -> NestedMap:
    """Returns a `jax.ShapeDtypeStruct` for each field of a batch of a process.

    Fields that stay on the host are left out.
    """
    raise NotImplementedError(type(self).__name__)


class DatasetInputSpecsProvider(BaseInputSpecsProvider):
  """Asks an input, which reads a batch only if it cannot tell without one.

  Attributes:
    input_p: config of the input. It is built for this question alone, and
      closed then.
  """

  input_p: config_lib.Config = config_lib.REQUIRED

  def get_input_specs(self) -> NestedMap:
    """Returns what a batch of the input is like.

    Raises:
      UserError: it has no batch.
    """
    data = self.input_p.Instantiate()
    try:
      return data.batch_specs() or self._of_a_batch(data)
    finally:
      data.close()

  def _of_a_batch(self, data: BaseInput) -> NestedMap:
    logging.info(
      '%s %r cannot tell what its batches are like: one is read to know it',
      type(data).__name__,
      data.name,
    )
    batch = data.peek_padded()
    if batch is None:
      raise errors.UserError(f'the dataset {data.name!r} has no batch')
    return data.specs_of(batch)


def _next_batch(data: BaseInput) -> NestedMap:
  """Returns an input's next batch, held against what every batch must be."""
  try:
    batch = data.get_next()
  except Exception as e:
    if _is_end_of_tf_data(e):
      raise StopIteration from e
    raise
  data.check(
    isinstance(batch, NestedMap),
    f'a batch of {data.name} is a {type(batch).__name__}; expected a NestedMap'
    ' of NumPy arrays',
  )
  if not data._has_arrays:
    for path, x in batch.flatten_items():
      data.check(
        hasattr(x, 'shape') and hasattr(x, 'dtype'),
        f'the field {path!r} of a batch of {data.name} is a'
        f' {type(x).__name__}; expected a NumPy array',
      )
    data._has_arrays = True
  return batch


def _is_end_of_tf_data(error: Exception) -> bool:
  """Whether an input of the user's was told by TensorFlow that data ended."""
  tf = sys.modules.get('tensorflow.python.framework.errors_impl')
  return tf is not None and isinstance(error, tf.OutOfRangeError)


def _forgetting(reset):
  """Returns a `reset` that forgets the batch that was peeked at."""

  @functools.wraps(reset)
  def forgets(self):
    self._forget()
    return reset(self)

  return forgets

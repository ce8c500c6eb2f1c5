"""Inputs: where a program gets its batches from.

A custom input needs `get_next`; with `reset` it can be evaluated on all
of its data, and with a state a training run continues at the next batch:

>>> class Squares(BaseInput):
...   def __post_init__(self):
...     super().__post_init__()
...     self._next = 0
...
...   def get_next(self):
...     if self._next >= 6:
...       raise StopIteration
...     x = np.arange(self._next, self._next + self.batch_size)
...     self._next += self.batch_size
...     return NestedMap(x=x, y=x**2)
...
...   def reset(self):
...     self._next = 0
...
...   def _get_state_internal(self):
...     return str(self._next).encode()
...
...   def _set_state_internal(self, state):
...     self._next = int(state)
>>> data = Squares.config(batch_size=3, reset_for_eval=True).Instantiate()
>>> data.peek_padded().y.tolist()
[0, 1, 4]
>>> data.get_state()
b'0'
>>> [data.get_next_padded().y.tolist() for _ in range(2)]
[[0, 1, 4], [9, 16, 25]]
>>> data.set_state(b'3')
>>> data.get_next_padded().x.tolist()
[3, 4, 5]

`inputs.indexed_input.IndexedInput` has all of this for examples that can be
read by index.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.input_core import input_fields, reading, resharding, specs
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap

BaseInputSpecsProvider = specs.BaseInputSpecsProvider
DatasetInputSpecsProvider = specs.DatasetInputSpecsProvider


class BaseInput(reading.ReadableInput):
  """An iterator over batches, one instance for each process.

  Subclasses write `get_next`, and of the other methods those that apply. The
  trainer reads by `get_next_padded` and `peek_padded`.

  Attributes:
    name: name of the dataset in logs, metrics and summary folders; see
      `default_name`.
    batch_size: examples in a batch of this process; None if the input sets it.
    num_infeed_hosts: number of processes that feed; set by the trainer.
    infeed_host_index: index of this process among them; set by the trainer.
    input_random_seed: seed for shuffling.
    reset_for_eval: whether each evaluation restarts at the first batch.
    eval_loop_num_batches: number of batches of an evaluation; None or -1 for
      all. See below.
    is_training: whether this is the training input.
    input_checkpointing_enabled: whether the run saves the state of this input;
      set by the trainer, to `enable_input_checkpointing` of
      `task_settings.Train` on the training input. An input whose state is
      costly may provide it only then.
    known_ids: vocabulary size of the model, if it is certain; set by the
      trainer. `get_next_padded` refuses batches with larger values in a leaf
      called `ids`.
    batch_padding_size: number of padding rows that `get_next_padded` adds to
      each batch: zeros with weight 0.

  | an evaluation reads                    | `eval_loop_num_batches` | resets |
  | -------------------------------------- | ----------------------- | ------ |
  | all of the data, which must be finite  | not set, None or -1     | True   |
  | the first N batches, the same each time| N                       | True   |
  | the next N batches, on a rolling basis | N, or 1 if not set      | False  |
  | (refused: it would end only once)      | None or -1              | False  |

  Raises:
    UserError: the name has other characters than letters, digits and `.:_+-`,
      `eval_loop_num_batches` is 0 or below -1, all of the data is to be read
      without `reset_for_eval`, `batch_size` is below 1, or `infeed_host_index`
      is out of range.
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

  def __post_init__(self):
    input_fields.give_name(self)
    self.eval_loop_num_batches = input_fields.eval_batches(self)
    self.check_fields(self)

  # Fields and sizes.

  @classmethod
  def check_fields(cls, fields: 'config_lib.Config | BaseInput'):
    """Checks the fields of every input, before any data is read.

    Args:
      fields: a config of this class, or an input.

    Raises:
      UserError: see the class.
    """
    input_fields.check(
      fields,
      label=cls.__name__,
      can_reset=cls.reset is not BaseInput.reset,
    )

  @classmethod
  def check_files(cls, params: config_lib.Config):
    """Checks that the files of an input exist, without building it; optional.

    It is called for training data before the model is built, which takes longer
    than to find out that a file is missing.

    Args:
      params: a config of this class.

    Raises:
      UserError: a file is missing.
    """

  @classmethod
  def default_name(cls, fields: 'config_lib.Config | BaseInput') -> str:
    """Returns the name of an input whose `name` is not set.

    Args:
      fields: a config of this class, or an input.
    """
    return 'train' if fields.is_training else 'input'

  @classmethod
  def get_batch_size(cls, params: config_lib.Config) -> int:
    """Returns the number of examples in a batch of one process.

    Args:
      params: a config of this class.

    Raises:
      UserError: `batch_size` is not set.
    """
    if params.batch_size is None:
      raise errors.UserError(
        f'{cls.__name__}.batch_size of {params.name} is not set; expected the'
        ' number of examples in a batch of one process'
      )
    return params.batch_size

  @classmethod
  def get_global_batch_size(cls, params: config_lib.Config) -> int:
    """Returns the number of examples in a batch of all processes."""
    return cls.get_batch_size(params) * params.num_infeed_hosts

  # Inputs that this one reads from, and resources.

  def children(self) -> Collection['BaseInput']:
    """Returns the inputs that this one reads from; for subclasses."""
    return ()

  def close(self):
    """Frees threads and files. The input cannot be used afterwards."""
    for child in self.children():
      child.close()

  def interrupt(self):
    """Makes a `get_next` raise that waits for other processes.

    Called from another thread; afterwards the input is only closed.
    """
    for child in self.children():
      child.interrupt()

  def raise_if_broken(self):
    """Raises what background checks of the data have found so far.

    Called while a `get_next` waits: a reader may hang on damaged data.

    Raises:
      UserError: the data is damaged.
    """
    for child in self.children():
      child.raise_if_broken()

  # Resuming and agreement between processes.

  @property
  def state_fits_any_hosts(self) -> bool:
    """Whether the state is equal on all hosts and fits any number of them."""
    return False

  def resume_at(self, step: int):
    """Moves a training input past its first `step` batches, if it can.

    Called once, before the first `get_next`, when a run continues from a
    checkpoint without a state that fits. An input that cannot move there
    exactly logs where it continues.
    """
    del step

  def after_restart(self) -> str:
    """Describes where this input continues after a restart without a state.

    Logged at the start of a run whose training input has no state.
    """
    if type(self).resume_at is BaseInput.resume_at:
      return 'it starts at its first batch again'
    return 'it goes on where its resume_at(step) puts it'

  def order_digest(self) -> bytes | None:
    """Returns a digest of what was read since the last reset.

    For inputs of which every process reads all data in the same order: the
    trainer compares the digests of the processes. None, the default, if
    processes read different data.
    """
    return None

  # Shapes.

  def example_batch(self, first: NestedMap) -> NestedMap:
    """Returns a batch to initialize a model with; only shapes matter.

    It is `first`, unless a batch may reach only some weights of the model.

    Args:
      first: the first batch of `get_next`.
    """
    return first

  @classmethod
  def specs_of_config(cls, config: Any) -> NestedMap | None:
    """Returns the specs of a batch, as `batch_specs`, without any data.

    Args:
      config: of an input of this class, which is not built.

    Returns:
      As `batch_specs`; None, the default, if the config does not have them.
    """
    del config
    return None

  def batch_specs(self) -> NestedMap | None:
    """Returns the specs of a batch, if they are known without reading one.

    Returns:
      A `jax.ShapeDtypeStruct` for each field of a batch of `get_next_padded`,
      without host fields; None if a batch has to be read.
    """
    return None

  def specs_of(self, batch: NestedMap, *, rows: int | None = None) -> NestedMap:
    """Returns the specs of a batch, as `batch_specs` does.

    Args:
      batch: arrays [B, ...], or other leaves with a shape and a dtype.
      rows: number of rows; None for B.
    """
    return specs.of_batch(batch, self.is_host_field, rows=rows)

  def reshard_for_pmap(self, arrays: Any) -> Any:
    """Returns a batch split over this process's devices, for `jax.pmap`.

    Args:
      arrays: leaves [B, ...].

    Returns:
      Leaves [devices, B / devices, ...].

    Raises:
      UserError: B is not a multiple of the number of devices.
    """
    return resharding.for_pmap(arrays, name=self.name)

  def reshard_for_spmd(
    self, arrays: Any, global_mesh: jax.sharding.Mesh, pspecs: Any
  ) -> Any:
    """Returns the global batch, of which this host has a part.

    Args:
      arrays: leaves [B, ...] of this host.
      global_mesh: mesh of all devices.
      pspecs: a `jax.sharding.PartitionSpec` for each leaf.

    Returns:
      Leaves [B * num_infeed_hosts, ...] on the devices.
    """
    return resharding.for_spmd(
      arrays, global_mesh, pspecs, num_hosts=self.num_infeed_hosts
    )

  # Host fields, metrics of examples, tokenizers.

  def is_host_field(self, path: str, leaf: np.ndarray) -> bool:
    """Returns whether a leaf of a batch stays on the host.

    The model does not see host fields; metrics of all examples, after an
    evaluation or decoding, do. By default these are strings and objects.

    Args:
      path: dotted path of the leaf.
      leaf: [B, ...].
    """
    del path
    return leaf.dtype.kind in 'OSU'

  def has_example_metrics(self, kind: str) -> bool:
    """Returns whether this input computes metrics over all examples.

    Args:
      kind: 'decode', of decoded outputs, or 'eval', of per-example outputs of
        an evaluation.
    """
    del kind
    return False

  def example_metrics(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> dict[str, Any]:
    """Returns metrics over all examples of an evaluation or decoding.

    Called on the first process, if `has_example_metrics`.

    Args:
      kind: as of `has_example_metrics`.
      examples: for each row of all hosts with a weight above 0, its host
        fields by dotted path, and the model's output: the value of the pair
        that `process_decode_out` returned, or its row of each per-example
        output.

    Returns:
      The metrics by name, as values for a `MetricWriter`.
    """
    raise NotImplementedError(type(self).__name__)

  def example_lines(
    self, kind: str, examples: Sequence[tuple[Mapping, Mapping]]
  ) -> Iterable[dict[str, Any]]:
    """Returns lines to write for the examples; by default none.

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
    """Returns metrics of this input; by default the sums of its children's.

    Called in any thread when metrics of its dataset are written; those of the
    first process are written.

    Returns:
      Numbers by name, such as `input/skipped_records`.
    """
    sums = Counter()
    for child in self.children():
      sums.update(child.input_metrics())
    return dict(sums)

  def tokenizers(self) -> dict[str, str]:
    """Returns descriptions of the tokenizers by name; by default none.

    Inputs with equal descriptions make equal tokens.
    """
    return {}

  def ids_to_strings(self, ids, lengths, key: str | None = None) -> list[str]:
    """Returns strings for token ids; by default the ids as numbers.

    Args:
      ids: [B, T], int.
      lengths: [B], int, number of tokens in each row.
      key: name of the tokenizer, for inputs that have several, such as 'src'
        and 'tgt'; None for the only one.

    Returns:
      B strings.
    """
    del key
    return [
      ' '.join(str(token) for token in row[:length])
      for row, length in zip(ids, lengths, strict=True)
    ]

  def prompts(
    self, strings: Sequence[str], key: str | None = None
  ) -> prompts_lib.Prompts:
    """Returns the tokens of prompts for a language model to continue.

    They are those of training examples: with the token that begins a sequence,
    if there is one, and without that which ends it.

    Args:
      strings: B prompts.
      key: name of the tokenizer, as of `ids_to_strings`.

    Raises:
      UserError: the input does not tokenize strings.
    """
    del strings, key
    raise errors.UserError(
      f'{type(self).__name__} does not tokenize strings; expected an input'
      ' with a method prompts()'
    )

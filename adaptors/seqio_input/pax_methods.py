"""What loops of one's own call of Pax's `SeqIOInput`, and its module."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from adaptors import lingvo_runtime
from adaptors.seqio_input.metrics import task_metrics
from adaptors.seqio_input.reading import host_rows
from pax_compat import errors, py_utils

# Methods of Pax's class that compute a part of its dataset, and what a subclass
# defines here instead of one.
_DATASET = (
  'make the dataset in the SeqIO task (mixture_or_task), or in a feature'
  ' converter'
)
_NEVER_CALLED = dict.fromkeys(
  """
  _filter_ragged_tensor _gen_targets_dataset _get_backing_ds _get_dataset
  _get_global_ds _get_num_eval_examples _get_one_example_ds _get_targets
  _pad_to_batch_size configure_tf_data_options
  """.split(),
  _DATASET,
) | {
  'compute_metrics': 'define example_metrics',
  '_compute_metric_values': 'define example_metrics',
}
_INDEX = re.compile(rf'\b{host_rows.INDEX}=(-?\d+)')
_SHARDS = re.compile(rf'\b{host_rows.SHARDS}=(-?\d+)')


class PaxMethods:
  """Properties and methods of Pax, for a `SeqIOInput`."""

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    for name, instead in _NEVER_CALLED.items():
      if name in vars(cls):
        raise errors.UserError(
          f'{cls.__qualname__}.{name} would never be called; {instead}'
        )

  @property
  def is_mixture(self) -> bool:
    """Whether the data is a SeqIO mixture, and not a task."""
    return isinstance(self.mixture_or_task_inst, lingvo_runtime.seqio().Mixture)

  @property
  def task_inst(self) -> Any:
    """The SeqIO task or mixture."""
    return self.mixture_or_task_inst

  @property
  def is_deterministic(self) -> bool:
    """Whether training data has one order on any number of hosts."""
    return self.deterministic_input

  @property
  def should_shuffle(self) -> bool:
    """Whether the data is shuffled: never that of evaluations."""
    return self.is_training and self.shuffle in (None, True)

  @property
  def should_repeat(self) -> bool:
    """Whether the data is repeated."""
    return self.repeats

  @property
  def dataset(self) -> Any:
    """Not supported.

    Raises:
      AttributeError: always.
    """
    raise AttributeError(
      f'{type(self).__name__}.dataset is not supported: batches are NumPy'
      ' arrays; use get_next(), or mixture_or_task_inst.get_dataset() of SeqIO'
    )

  def compute_metrics(
    self,
    decoder_outputs: Sequence[tuple[str, dict[str, Any]]],
    score_metrics: bool = False,
    verbose_entries: int | None = 0,
    plain_text_output: Any = None,
  ) -> list[Mapping[str, Any]]:
    """Returns the metrics of the task, for an evaluation that is a loop.

    The outputs get what metrics were computed from: `seqio_targets` and
    `seqio_postprocessed_predictions`, or `seqio_postprocessed_targets` and,
    with `log_preprocessed_targets`, `seqio_preprocessed_targets`.

    Args:
      decoder_outputs: the outputs of all hosts, in any order: the key of
        `py_utils.get_enumeration_id`, and the outputs of an example by name.
        Those of padding rows are ignored.
      score_metrics: whether to compute metrics of scores, instead of those of
        predictions.
      verbose_entries: has no effect.
      plain_text_output: must be None.

    Returns:
      The values of each metric, by name. Empty without outputs, or if the
      task has no metrics of that kind; see `task_metrics.has_metrics`.

    Raises:
      UserError: as for `task_metrics.compute`, or a key is not one of this
        input.
    """
    del verbose_entries
    if plain_text_output is not None:
      raise errors.UserError(
        'compute_metrics: plain_text_output is not supported; expected None:'
        ' the outputs get what metrics were computed from'
      )
    kind = 'eval' if score_metrics else 'decode'
    if not decoder_outputs or not task_metrics.has_metrics(self, kind):
      return []
    examples = [
      ({host_rows.INDEX: index}, outputs)
      for key, outputs in decoder_outputs
      if (index := _index_of(key)) >= 0
    ]
    matched = task_metrics.matched(self, examples)
    found = task_metrics.values(self, kind, matched)
    if score_metrics:
      added = {'seqio_postprocessed_targets': matched.targets}
      if self.log_preprocessed_targets:
        added['seqio_preprocessed_targets'] = matched.examples
    else:
      added = {
        'seqio_targets': matched.targets,
        'seqio_postprocessed_predictions': matched.predictions,
      }
    for name, column in added.items():
      for outputs, value in zip(matched.outputs, column, strict=True):
        outputs[name] = value
    return found


def _index_of(key: str) -> int:
  """Returns the index of an example, -1 of a padding row."""
  index, shards = _INDEX.search(str(key)), _SHARDS.search(str(key))
  if not index or not shards or shards[1] not in ('1', '-1'):
    raise errors.UserError(
      f'compute_metrics: {key!r} is not the key of an example of this input;'
      ' expected py_utils.get_enumeration_id of a row of a batch, with one'
      ' shard; maybe_update_decode_output_keys replaces the keys of'
      ' process_decode_out'
    )
  return int(index[1])


def maybe_update_decode_output_keys(
  process_decode_output: Sequence[tuple[str, Any]], decode_out: Mapping
) -> Sequence[tuple[str, Any]]:
  """Returns the outputs of examples with the keys that metrics need.

  Args:
    process_decode_output: the pairs that `process_decode_out` returned, without
      padding rows.
    decode_out: its argument, which may have padding rows.

  Returns:
    The pairs with the keys of `py_utils.get_enumeration_id`; unchanged if
    `decode_out` does not have the provenance of its examples.

  Raises:
    UserError: there are other numbers of pairs and of examples.
  """
  provenance, _ = py_utils.filter_by_matching_keys(
    decode_out, [py_utils.PROVENANCE_PREFIX]
  )
  if not provenance:
    return process_decode_output
  rows = py_utils.tree_unstack(provenance, 0)
  keys = [
    py_utils.get_enumeration_id(row)
    for row in rows
    if row[host_rows.INDEX] >= 0
  ]
  if len(keys) != len(process_decode_output):
    raise errors.UserError(
      f'process_decode_out has returned {len(process_decode_output)} outputs of'
      f' {len(keys)} examples; expected one for each example, and none for'
      ' padding rows, whose eval_sample_weights are 0'
    )
  values = (value for _, value in process_decode_output)
  return list(zip(keys, values, strict=True))


def should_process_outputs(inp: Any) -> bool:
  """Whether this process computes metrics of a SeqIO input."""
  return isinstance(inp, PaxMethods) and jax.process_index() == 0


def select_split(task: str, split_name: str | Callable[[str], str]) -> str:
  """Returns the split of a task, which may be a function of its name."""
  return split_name(task) if callable(split_name) else split_name


def is_packing_on(fc: Any) -> bool:
  """Whether a feature converter packs examples."""
  return bool(getattr(fc, 'pack', False))

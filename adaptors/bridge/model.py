"""A Lingvo task as a `BaseModel`: Lingvo's FProp and gradients inside of JAX.

Shapes: B batch.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from absl import logging

from adaptors.bridge import calling, decoding, host_methods, vocabulary
from adaptors.bridge.functional.functional_task import FunctionalTask
from adaptors.bridge.scoped_variables import GLOBAL_STEP, ScopedVariables
from pax_compat import base_model
from pax_compat.config import REQUIRED, Config
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap


class BridgedModel(base_model.BaseModel):
  """A Lingvo task, compiled into the training step by TensorFlow.

  Its variables have the paths of Lingvo's theta (`lm/emb/wm_0` is
  `lm.emb.wm[0]`). In addition it has a counter of steps, `global_step`.

  Attributes:
    lingvo_task: a `lingvo_task.LingvoTask`.
    loss_names: the metrics that may be differentiated, by default the loss.
    batches_per_step: (p, q): Lingvo's global step grows by q in p batches;
      (1, 1) by default.
  """

  # TensorFlow compiles it; see `inference.exporting`.
  ONE_SHAPE_AND_PLATFORM: ClassVar[bool] = True

  lingvo_task: Any = REQUIRED
  loss_names: Sequence[str] = ('loss',)
  batches_per_step: tuple[int, int] = (1, 1)

  @classmethod
  def known_ids(cls, config: Config) -> int | None:
    """Returns the number of token ids of the Lingvo task, if it is certain."""
    return vocabulary.num_ids(config.lingvo_task.params)

  def compute_predictions(self, input_batch: NestedMap) -> Any:
    """Returns the metrics, and per-example outputs [B, ...]."""
    # Lingvo tasks do not know example weights.
    batch = {k: v for k, v in input_batch.items() if k != example_rows.WEIGHTS}
    if self.is_initializing():
      self._create_variables(batch)
      return {}, {}
    if self.do_eval:
      _warn_without_weights(self.lingvo_task, batch)
    task, variables = self._task, ScopedVariables(self)
    trained = set(task.trained)
    values = {path: variables.read(path) for path in task.variables}
    counted = variables.read(GLOBAL_STEP)
    batches, steps = self.batches_per_step
    metrics, per_example, updates = calling.call(
      task,
      tuple(self.loss_names),
      params={k: v for k, v in values.items() if k in trained},
      probes=variables.probes(trained),
      others=(
        {k: v for k, v in values.items() if k not in trained},
        batch,
        counted * steps // batches,
        calling.seed(self.next_prng_key()),
      ),
    )
    variables.write_after_step(updates)
    return metrics, per_example

  @property
  def counts_padding_rows(self) -> bool:
    """True: nobody knows what the metrics of a user's task count."""
    return True

  @staticmethod
  def named_predictions(predictions: Any) -> NestedMap:
    """Returns `compute_predictions` by name, for an exported model.

    Returns:
      `loss` and `loss_weight` [] for the metric `loss`, and so on; per-example
      outputs are in `per_example`.
    """
    metrics, per_example = predictions
    found = {'per_example': dict(per_example)}
    for name, (value, weight) in metrics.items():
      found |= {name: value, f'{name}_weight': weight}
    return NestedMap.from_nested(found)

  def after_update(self, input_batch: NestedMap):
    """Calls the layers' `PostTrainingStepUpdate`, if it depends on weights."""
    task = self.lingvo_task.at_training
    if not task.updates_by_weights:
      return
    batch = {k: v for k, v in input_batch.items() if k != example_rows.WEIGHTS}
    variables = ScopedVariables(self)
    counted = variables.read_before(GLOBAL_STEP)
    batches, steps = self.batches_per_step
    updates = calling.in_jax(task.after_update)(
      {path: variables.read_before(path) for path in task.variables},
      {path: variables.read(path) for path in task.variables},
      batch,
      counted * steps // batches,
      calling.seed(self.next_prng_key()),
    )
    for path, value in updates.items():
      variables.write(path, value)

  def compute_loss(self, predictions: Any, input_batch: NestedMap):
    """Returns `predictions`, which contain the losses."""
    del input_batch
    return predictions

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Returns the inputs of decoding for `process_decode_out`.

    Raises:
      UserError: the task cannot decode.
    """
    variables = ScopedVariables(self)
    paths = self.lingvo_task.decoder.task.variables
    counted = variables.read(GLOBAL_STEP)
    batches, steps = self.batches_per_step
    given = {
      'values': {path: variables.read(path) for path in paths},
      'batch': dict(input_batch),
      'step': counted * steps // batches,
      'seed': calling.seed(self.next_prng_key()),
    }
    return {}, given, {}

  def process_decode_out(
    self, input_obj: Any, decode_out: Any
  ) -> base_model.ProcessDecodeOut:
    """Decodes a batch in TensorFlow; see `decoding.process`."""
    del input_obj  # The Lingvo task has a separate tokenizer.
    return decoding.process(
      self.lingvo_task.decoder,
      decode_out['values'],
      decode_out,
      decode_out['step'],
    )

  def skip_step(self):
    """Counts a step of another task."""
    ScopedVariables(self).write_after_step({})

  def after_step(self):
    """Returns a function that calls the task's `ProcessFPropResults`."""
    return host_methods.after_step(self.lingvo_task)

  def after_decoding(self):
    """Returns a function that calls the task's `DecodeFinalize`."""
    return host_methods.after_decoding(self.lingvo_task)

  @property
  def _task(self) -> FunctionalTask:
    task = self.lingvo_task
    return task.at_evaluation if self.do_eval else task.at_training

  def _create_variables(self, batch):
    trace = self.lingvo_task.trace(tuple(self.loss_names), batch)
    variables = self.lingvo_task.at_training.variables
    ScopedVariables(self).create_all(
      variables,
      probes=(*trace.sparse_tables, *trace.unused),
      axes=self.mesh_axis_names,
    )


def _warn_without_weights(task: Any, batch: Any):
  """Warns if a task cannot recognize the padding rows of an evaluation."""
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
  marks = example_rows.is_weight, example_rows.is_padding
  if not any(mark(path) for path in paths for mark in marks):
    logging.warning(
      '%s: its batches have neither weights nor paddings, so with several'
      ' devices or processes padding rows in the last batch of an evaluation,'
      ' copies of an example, count like others; expected a batch size that'
      ' divides the number of examples, or a field `weights`',
      task,
    )

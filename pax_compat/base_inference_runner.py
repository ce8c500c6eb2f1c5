"""Inference runners: what `--mode=infer` computes of each example.

Shapes: B batch.
"""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from pax_compat import config as config_lib
from pax_compat.nested_map import NestedMap
from pax_compat.runs import example_records


class BaseInferenceRunner(config_lib.Configurable, abc.ABC):
  """Computes outputs of a trained model, which a job writes to files.

  A subclass defines `infer` and `output_schema`, and the task names it:

  >>> import jax
  >>> import numpy as np
  >>> from pax_compat import tasks_lib
  >>> class Embeddings(BaseInferenceRunner):
  ...   def infer(
  ...     self, train_state, prng_key, var_weight_hparams, input_batch
  ...   ):
  ...     outputs = self.model.apply(
  ...       train_state.mdl_vars, input_batch, method='compute_predictions'
  ...     )
  ...     return NestedMap(embedding=outputs)
  ...
  ...   @property
  ...   def output_schema(self):
  ...     return NestedMap(embedding=jax.ShapeDtypeStruct([512], np.float32))
  >>> task = tasks_lib.SingleTask.config()
  >>> task.infer_writer = tasks_lib.InferWriter.config(
  ...   inference_runner=Embeddings.config(), output_num_shards=4
  ... )

  Attributes:
    model: the model, which the job sets.
  """

  model: Any = None

  @abc.abstractmethod
  def infer(
    self,
    train_state: Any,
    prng_key: Any,
    var_weight_hparams: Any,
    input_batch: NestedMap,
  ) -> NestedMap:
    """Computes the outputs of a batch, on the accelerators.

    Args:
      train_state: its `mdl_vars` are the model's variables, averaged if the
        task keeps moving averages; `step` is their number of train steps. The
        learner's state is empty.
      prng_key: the random key of the batch.
      var_weight_hparams: the metadata of each trainable weight, by path.
      input_batch: arrays [B, ...].

    Returns:
      Arrays [B, ...] with the structure of `output_schema`.
    """

  @property
  @abc.abstractmethod
  def output_schema(self) -> NestedMap:
    """The shape and dtype of each output of one example, without B.

    Leaves have the attributes `shape` and `dtype`, as `jax.ShapeDtypeStruct`
    and the features of TFDS do.
    """

  def serialize_outputs(self, outputs: NestedMap) -> list[bytes]:
    """Returns a serialized `tf.train.Example` for each example.

    Its fields have the names of TFDS, such as `nested/text`, whose
    `FeaturesDict(output_schema)` reads them.

    Args:
      outputs: arrays [B, ...] with the structure of `output_schema`.

    Raises:
      UserError: the structure is another one, or a `tf.train.Example` cannot
        represent a type.
    """
    fields = _by_name(outputs)
    expected = _by_name(self.output_schema)
    self.check(
      fields.keys() == expected.keys(),
      f'the outputs have the fields {", ".join(sorted(fields))}; expected those'
      f' of output_schema: {", ".join(sorted(expected))}',
    )
    arrays = [np.asarray(x) for x in fields.values()]
    return [
      example_records.serialized(dict(zip(fields, row, strict=True)))
      for row in zip(*arrays, strict=True)
    ]


def _by_name(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the leaves of nested fields by name, such as `nested/text`."""
  items = NestedMap.FromNestedDict(fields).flatten_items()
  return {path.replace('.', '/'): leaf for path, leaf in items}

"""Inference runners: what `--mode=infer` computes of each example.

Shapes: B batch.
"""

import abc
from typing import Any

from pax_compat import config as config_lib
from pax_compat.nested_map import NestedMap


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

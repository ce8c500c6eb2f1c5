"""A trained model: its steps as functions of batches in memory.

Shapes: B batch, P prompt, T time.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, base_layer, errors
from pax_compat import config as config_lib
from pax_compat.experiments import resolved as resolved_lib
from pax_compat.inference import (
  decoding_options,
  exporting,
  generating,
  text_server,
  text_streams,
)
from pax_compat.input_core import host_fields
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning
from pax_compat.trainer.program import TaskProgram

# Slots of a server, unless something says otherwise.
_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Decoded:
  """What a model decoded of a batch.

  Attributes:
    outputs: the arrays of the model's `decode`, as NumPy arrays.
    metrics: means over the batch by name.
    pairs: a (key, value) pair of each example, as `process_decode_out` of the
      model returns them, and as a decoding writes them.
  """

  outputs: Any
  metrics: dict[str, float]
  pairs: list[tuple[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
  """A trained model.

  Batches are mappings of arrays [B, ...], such as those of `batches`. A batch
  whose rows cannot be divided over the devices is replicated.

  >>> model = load('runs/first')                             # doctest: +SKIP
  >>> batch = next(model.batches('Dev'))                     # doctest: +SKIP
  >>> model.loss(batch)                                      # doctest: +SKIP
  2.71

  Attributes:
    experiment: the experiment, with the changes of the run.
    config: the config of the task, with the mesh it is on.
    step: the number of steps it was trained for.
    mdl_vars: the variables by collection, such as `params`, sharded.
    program: the compiled functions of the task.
    example: the shapes of a batch.
  """

  experiment: resolved_lib.ResolvedExperiment = dataclasses.field(repr=False)
  config: config_lib.Config = dataclasses.field(repr=False)
  step: int
  mdl_vars: Any = dataclasses.field(repr=False)
  program: TaskProgram = dataclasses.field(repr=False)
  example: NestedMap = dataclasses.field(repr=False)

  def predict(self, batch: Mapping[str, Any]) -> Any:
    """Returns the predictions of the model, as for an evaluation.

    For example `logits` [B, T, V] of a language model.

    Args:
      batch: the batch, with all fields that the model reads.
    """
    return self._predict(self.mdl_vars, self._put(batch))

  def loss(self, batch: Mapping[str, Any]) -> float:
    """Returns the loss of a batch, as an evaluation reports it."""
    return self.metrics(batch)[self.program.loss_aggregator.loss_name]

  def metrics(self, batch: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scalar metrics of a batch by name, without their weights."""
    outputs = self.program.eval_step(self.mdl_vars, self._put(batch))
    weighted = jax.device_get(outputs.weighted)
    return {name: float(value) for name, (value, _) in weighted.items()}

  def decode(
    self, batch: Mapping[str, Any], dataset: str | None = None
  ) -> Decoded:
    """Decodes a batch, with the decoder settings of the model.

    Args:
      batch: the batch.
      dataset: the name of the dataset whose tokenizer makes text; None for the
        one that the model is trained on.

    Raises:
      UserError: the model does not decode.
    """
    outputs = jax.device_get(
      self.program.decode_step(self.mdl_vars, self._put(batch))
    )
    weighted, pairs, _ = self.program.model.process_decode_out(
      self.input(dataset), outputs.decoded
    )
    metrics = {**outputs.weighted, **weighted}
    return Decoded(
      outputs.decoded,
      {name: float(value) for name, (value, _) in metrics.items()},
      list(pairs),
    )

  def generate(
    self,
    texts: Sequence[str],
    *,
    max_decode_steps: int = 64,
    dataset: str | None = None,
    draft: 'TrainedModel | None' = None,
    stream: Callable[[text_streams.TextPiece], None] | None = None,
    **options: Any,
  ) -> list[str] | list[list[str]]:
    """Continues texts, by the decoder of the model or as the options say.

    Args:
      texts: the prompts.
      max_decode_steps: the maximum number of tokens to add to each.
      dataset: the name of the dataset whose tokenizer is used; None for the one
        that the model is trained on.
      draft: a smaller model of the same vocabulary that proposes tokens, so
        that this one needs fewer steps; texts keep their distribution.
      stream: gets each piece of text as soon as it is decoded, a `TextPiece`
        with `prompt`, `sample`, `text`, `ids` and `done`; None for none.
      **options: `temperature`, `top_k`, `top_p`, `num_samples`, `beam_size`,
        `seed` and `draft_steps`; see `DecodingOptions`.

    Returns:
      The continuation of each prompt, without it; or with `num_samples` or
      `beam_size` the list of its continuations, the best ones first, or with
      `stream` in the order of `TextPiece.sample`.

    Raises:
      UserError: the model is not a language model, the dataset does not
        tokenize strings, or the draft model does not suit the model.
    """
    return generating.generate(
      self,
      texts,
      data=self.input(dataset),
      max_decode_steps=max_decode_steps,
      options=decoding_options.options(**options),
      draft=draft,
      stream=stream,
    )

  def server(
    self,
    *,
    num_cache_slots: int | None = None,
    max_prefix_len: int = 256,
    max_decode_steps: int = 64,
    steps_at_once: int = 16,
    dataset: str | None = None,
    **options: Any,
  ) -> text_server.TextServer:
    """Returns a server, which continues texts that come at any time.

    Args:
      num_cache_slots: number of texts that are continued at once; None for that
        of the model's decoder, or 8 if it is 0.
      max_prefix_len: maximum number of tokens of a prompt.
      max_decode_steps: maximum number of tokens to add to each.
      steps_at_once: maximum number of tokens from one look at the slots to the
        next; a prompt waits that long for the end of another.
      dataset: as for `generate`.
      **options: `temperature`, `top_k`, `top_p` and `seed`, as for `generate`.

    Raises:
      UserError: see `TextServer`.
    """
    if num_cache_slots is None:
      decoder = config_lib.field_values(self.config.model).get('decoder_tpl')
      num_cache_slots = getattr(decoder, 'num_cache_slots', 0) or _SLOTS
    return text_server.TextServer(
      self,
      data=self.input(dataset),
      num_cache_slots=num_cache_slots,
      max_prefix_len=max_prefix_len,
      max_decode_steps=max_decode_steps,
      steps_at_once=steps_at_once,
      options=decoding_options.options(**options),
    )

  def export(self, folder: str | os.PathLike, **options: Any) -> None:
    """Writes the compiled model and its weights, to be used anywhere.

    `exporting.open_folder` reads it; `python -m adaptors.serving` makes a
    TensorFlow SavedModel of it.

    Args:
      folder: a new or empty folder.
      **options: of `exporting.export`.
    """
    exporting.export(self, folder, **options)

  def batches(self, dataset: str | None = None) -> Iterator[NestedMap]:
    """Yields the batches of a dataset, as an evaluation reads them.

    Those of the training data go on where the last call ended.

    Args:
      dataset: its name; None for the one that the model is trained on.
    """
    data = self.input(dataset)
    if data.reset_for_eval:
      data.reset()
    limit = None if data.is_training else data.eval_loop_num_batches
    numbers = itertools.count() if limit in (None, -1) else range(limit)
    for _ in numbers:
      try:
        batch = data.get_next_padded()
      except StopIteration:
        return
      yield host_fields.for_devices(batch, data.is_host_field)

  def input(self, dataset: str | None = None) -> base_input.BaseInput:
    """Returns a dataset's input, built at the first call.

    Args:
      dataset: its name; None for the one that the model is trained on.

    Raises:
      UserError: the dataset is unknown, or it cannot be built.
    """
    if dataset is None:
      [config] = self.experiment.train_datasets
      return self._input(config.name)
    return self._input(dataset)

  @functools.cached_property
  def _inputs(self) -> dict[str, base_input.BaseInput]:
    return {}

  def _input(self, name: str) -> base_input.BaseInput:
    configs = {
      config.name: config
      for config in (
        *self.experiment.decode_datasets,
        *self.experiment.datasets,
      )
    }
    if name not in configs:
      raise errors.UserError(
        f'unknown dataset {name!r}' + errors.did_you_mean(name, configs)
      )
    if name not in self._inputs:
      self._inputs[name] = configs[name].Instantiate()
    return self._inputs[name]

  @functools.cached_property
  def decoders(self) -> dict[Any, Any]:
    """The compiled functions of `generate`, by their options."""
    return {}

  @functools.cached_property
  def _predict(self):
    return jax.jit(self.predictions)

  def predictions(
    self,
    mdl_vars: Any,
    batch: NestedMap,
    *,
    mesh: jax.sharding.AbstractMesh | None = None,
  ) -> Any:
    """Computes the predictions of a batch; can be traced.

    Args:
      mdl_vars: the variables by collection.
      batch: the batch.
      mesh: the mesh; None for that of the program.
    """
    evaluate = self.program.task.evaluate
    mesh = mesh or self.program.mesh.abstract_mesh
    with base_layer.eval_mode(), jax.sharding.use_abstract_mesh(mesh):
      found, _ = self.program.model.apply(
        mdl_vars,
        batch,
        method='compute_predictions',
        rngs={base_layer.RANDOM: jax.random.key(evaluate.random_seed)},
        mutable=list(evaluate.apply_mutable_list),
      )
    return found

  def _put(self, batch: Mapping[str, Any]) -> NestedMap:
    return put(batch, self.program.batch_sharding)


def put(
  batch: Mapping[str, Any], sharding: partitioning.BatchSharding
) -> NestedMap:
  """Sends a batch to the devices, without its strings.

  Args:
    batch: arrays [B, ...].
    sharding: splits it, if B can be divided; otherwise it is replicated.
  """
  arrays = jax.tree.map(np.asarray, NestedMap.from_nested(dict(batch)))
  kept = host_fields.for_devices(arrays, lambda _, x: x.dtype.kind in 'OSU')
  added = partitioning.num_padding_rows(kept, sharding)
  if added and sharding.num_infeed_hosts == 1:
    return jax.device_put(kept, partitioning.replicated(sharding.mesh))
  return partitioning.global_batch(kept, sharding)

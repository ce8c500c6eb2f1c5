"""A task that Lingvo trains first, then we do, and both decode."""

import dataclasses
from typing import Any

import pytest

from adaptors.bridge import task as bridge_task
from adaptors.checkpoints import exporting, files, importing, task_metadata
from adaptors.lingvo_parity.batches import nested
from pax_compat.metrics import clu_metrics
from pax_compat.trainer import partitioning, program
from tests.adaptors.bridge import decoded
from tests.adaptors.lingvo_checkpoint import lingvo_runs


@dataclasses.dataclass
class Continued:
  """A trained task.

  Attributes:
    params: its Params.
    translated: its translation.
    state: after the last step.
    losses: of our steps.
    theta: the weights of a checkpoint that we exported, by theta path.
  """

  params: Any
  translated: Any
  state: program.TrainState
  losses: list[float]
  theta: dict[str, Any]

  @classmethod
  def run(cls, params, data, folder, steps) -> 'Continued':
    """Trains in Lingvo, and continues from its checkpoint.

    Args:
      params: of the task.
      data: a batch for each step of both.
      folder: of the checkpoints.
      steps: the number of Lingvo's.
    """
    lingvo_runs.train(params, data[:steps], folder, every=steps)
    translated = bridge_task.translate(params, params.name, 'native')
    made = program.create(
      translated.config.Instantiate(),
      partitioning.create_mesh(None, None),
      nested(data[0]),
    )
    metadata = task_metadata.of(params, translated)
    saved = files.TensorflowCheckpoint(folder / f'ckpt-{steps:08d}')
    state = importing.read_state(saved, metadata, made, nested(data[0]))
    losses = []
    for batch in data[steps:]:
      state, outputs = made.train_step(state, nested(batch))
      losses.append(float(outputs['loss']))
    exported = exporting.write(state, metadata, folder / 'exported')
    found = files.TensorflowCheckpoint(exported)
    theta = {path: found.read(name) for path, name in metadata.names.items()}
    return cls(params, translated, state, losses, theta)

  def check_decoding(self, batches) -> tuple[list, decoded.InLingvo, dict]:
    """Checks that pairs of strings are Lingvo's, and so are our metrics.

    Args:
      batches: by dotted name.

    Returns:
      For each batch the hypotheses that our search found; what Lingvo decoded;
      and our metrics of all batches.
    """
    theirs = decoded.in_lingvo(self.params, batches, theta=self.theta)
    model, ours, merged = self.translated.config.model.Instantiate(), [], None
    for batch, wanted in zip(batches, theirs.pairs, strict=True):
      given = decoded.given_by_model(
        model, dict(self.state.mdl_vars), nested(batch)
      )
      ours.append(given['found'])
      _, pairs, clu = model.process_decode_out(None, given)
      decoded.check_same(pairs, wanted)
      merged = clu_metrics.merge(merged, clu)
    found = decoded.values(merged)
    assert found == pytest.approx(
      {name: theirs.metrics[name] for name in found}
    )
    return ours, theirs, found

"""Records checkpoints of Pax's optimizers, and the losses that follow.

    python -m tests.pax.record_continued PAXML PRAXIS PACKAGES [CASE ...]

The folders are those of `record`; each CASE replaces its part of the recording,
by default all. Shampoo is run as in `record_optimizers`. It writes
testdata/pax/continued.tar.gz: the folder CASE/checkpoint_3 of each case of
`continued`, as Pax writes it in flax's format, some of them as an OCDBT
database, too, and the losses of the steps from there on.
"""

import importlib
import json
import pathlib
import shutil
import sys
import tarfile
import tempfile
from typing import Any

import jax
import jax.numpy as jnp

from tests.pax import (
  continued,
  record,
  record_checkpoints,
  record_optimizers,
)


def _run(name: str, save: Any) -> list[float]:
  """Trains with Pax's learner; returns the losses after the checkpoint."""
  fiddle = importlib.import_module('praxis.pax_fiddle')
  hyperparams = importlib.import_module('praxis.base_hyperparams')
  base_layer = importlib.import_module('praxis.base_layer')
  nested_map = importlib.import_module('praxis.py_utils').NestedMap
  learners = importlib.import_module('paxml.learners')
  states = importlib.import_module('paxml.train_states')
  config = continued.config(
    importlib.import_module('praxis.optimizers'),
    importlib.import_module('praxis.schedules'),
    name,
  )
  learner = hyperparams.instantiate(
    fiddle.Config(
      learners.Learner, name='learner', loss_name='loss', optimizer=config
    )
  )
  metas = {
    key: base_layer.WeightHParams(
      shape=one.shape,
      repeat_prefix=list(one.stack) or None,
      repeat_prefix_split_dims_mapping=[-1] * len(one.stack) or None,
    )
    for key, one in continued.shapes().items()
  }
  metas = nested_map(params=nested_map(metas))

  def tree(values):
    return nested_map(
      params=nested_map({k: jnp.asarray(x) for k, x in values.items()})
    )

  variables = tree(continued.weights())
  opt_state = learner.get_grad_tx(metas).init(variables)
  losses = []
  for step in range(continued.STEPS):
    if step == continued.STEP:
      count = jnp.asarray(step, jnp.uint32)
      save(states.TrainState(count, variables, [opt_state], ()))
    if step >= continued.STEP:
      losses.append(continued.loss(step, variables.params))
    gradients = tree(continued.gradients(step))
    settings = base_layer.JaxContext.HParams(do_eval=False)
    with base_layer.JaxContext.new_context(hparams=settings):
      changes, opt_state = learner.update_states(
        gradients, opt_state, variables, metas
      )
      variables = learner.apply_gradient(variables, changes, metas)
  return losses


def main():
  folders, names = sys.argv[1:4], sys.argv[4:] or continued.CASES
  record.mount(folders)
  record_optimizers.mend_shampoo(importlib.import_module('praxis.optimizers'))
  checkpoints = importlib.import_module('paxml.checkpoints')
  kinds = importlib.import_module('paxml.checkpoint_types').CheckpointType
  record_checkpoints.repair(checkpoints)
  losses = {}
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    if sys.argv[4:]:
      with tarfile.open(continued.RECORDED) as archive:
        archive.extractall(folder, filter='data')
      losses = json.loads((folder / continued.LOSSES).read_text())
    for name in names:
      for form in (folder / name, folder / f'{name}.ocdbt'):
        shutil.rmtree(form, ignore_errors=True)

      def save(state, name=name):
        shapes = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state
        )
        forms = [(name, kinds.FLAX)]
        if name in continued.IN_OCDBT:
          forms.append((f'{name}.ocdbt', kinds.GDA))
        for form, kind in forms:
          manager = checkpoints.save_checkpoint(
            state,
            folder / form,
            checkpoint_type=kind,
            tensorstore_use_ocdbt=kind == kinds.GDA,
            train_state_unpadded_shape_dtype_struct=shapes,
          )
          manager.wait_until_finished()

      losses[name] = _run(name, save)
    for marker in folder.rglob('commit_success.txt'):
      marker.write_text('committed\n')  # It has the path of the folder.
    (folder / continued.LOSSES).write_text(json.dumps(losses, indent=1))
    with tarfile.open(continued.RECORDED, 'w:gz') as archive:
      for path in sorted(folder.iterdir()):
        archive.add(path, path.name, filter=record_checkpoints.anonymous)
  print(f'wrote {continued.RECORDED}')


if __name__ == '__main__':
  main()

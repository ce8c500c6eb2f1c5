"""Records checkpoints that Pax writes, in each of its layouts.

    python -m tests.pax.record_checkpoints PAXML PRAXIS [PACKAGES]

The arguments are those of `record`. It writes testdata/pax/checkpoints.tar.gz:

    ocdbt/checkpoint_00000100   arrays in an OCDBT database of TensorStore
    gda/checkpoint_00000100     a TensorStore array in a folder for each
    flax/checkpoint_100         flax's msgpack
    vars.npz                    the arrays of the state, by path

of a tiny `LmCloudSpmd2B` with Adam and moving averages. The weights are initial
ones; the optimizer's arrays are numbers that tell them apart.
"""

import importlib
import pathlib
import sys
import tarfile
import tempfile
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint._src.handlers import base_pytree_checkpoint_handler

from tests.pax import record, tiny

_TARGET = pathlib.Path(__file__).parents[2] / 'testdata/pax/checkpoints.tar.gz'
_STEP, _VOCAB = 100, 16
_FORMS = {
  'ocdbt': ('GDA', True),
  'gda': ('GDA', False),
  'flax': ('FLAX', False),
}


def _state() -> Any:
  """Returns Pax's train state."""
  hyperparams = importlib.import_module('praxis.base_hyperparams')
  base_layer = importlib.import_module('praxis.base_layer')
  optimizers = importlib.import_module('praxis.optimizers')
  schedules = importlib.import_module('praxis.schedules')
  fiddle = importlib.import_module('praxis.pax_fiddle')
  nested_map = importlib.import_module('praxis.py_utils').NestedMap
  module = importlib.import_module('paxml.tasks.lm.params.lm_cloud')
  experiment = tiny.shrunk(module.LmCloudSpmd2B)
  type(experiment).VOCAB_SIZE = _VOCAB
  config = experiment.task()
  config.train.learner.optimizer = fiddle.Config(
    optimizers.Adam,
    beta1=0.9,
    beta2=0.99,
    learning_rate=1e-3,
    lr_schedule=fiddle.Config(schedules.Constant, value=1.0),
    ema_decay=0.9,
  )
  task = hyperparams.instantiate(config)
  batch = nested_map({k: jnp.asarray(x) for k, x in tiny.batch().items()})
  settings = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=settings):
    variables = task.model.init(jax.random.PRNGKey(3), batch)
  metadata = task.model.abstract_init_with_metadata(batch)
  state = task.create_train_state(variables, metadata)
  return state.replace(
    step=jnp.asarray(_STEP, jnp.uint32),
    opt_states=jax.tree_util.tree_map_with_path(_number, state.opt_states),
  )


def _number(path: Any, x: jax.Array) -> jax.Array:
  """Returns numbers that depend on the path."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return x
  first = zlib.crc32(jax.tree_util.keystr(path).encode()) % 1000
  return jnp.asarray(
    (first + np.arange(x.size).reshape(x.shape)) / 1000, x.dtype
  )


def repair(checkpoints: Any):
  """Makes Pax's handler accept the arguments that this Orbax passes."""
  base = base_pytree_checkpoint_handler.BasePyTreeCheckpointHandler
  original = base._write_metadata_file

  async def write(self, directory, **options):
    options.pop('partial_save', None)
    if self._use_ocdbt:
      await original(self, directory, **options)

  checkpoints.PaxCheckpointHandlerImpl._write_metadata_file = write


def main():
  record.mount(sys.argv[1:])
  checkpoints = importlib.import_module('paxml.checkpoints')
  kinds = importlib.import_module('paxml.checkpoint_types').CheckpointType
  repair(checkpoints)
  state = _state()
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    for name, (kind, is_ocdbt) in _FORMS.items():
      manager = checkpoints.save_checkpoint(
        state,
        folder / name,
        checkpoint_type=kinds[kind],
        tensorstore_use_ocdbt=is_ocdbt,
        train_state_unpadded_shape_dtype_struct=shapes,
      )
      manager.wait_until_finished()
    for marker in folder.rglob('commit_success.txt'):
      marker.write_text('committed\n')  # It has the path of the folder.
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    arrays = {
      jax.tree_util.keystr(path, simple=True, separator='.'): np.asarray(x)
      for path, x in leaves
    }
    np.savez_compressed(folder / 'vars.npz', **arrays)
    with tarfile.open(_TARGET, 'w:gz') as archive:
      for path in sorted(folder.iterdir()):
        archive.add(path, path.name, filter=anonymous)
  print(f'wrote {_TARGET}, {_TARGET.stat().st_size} bytes')


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
  info.uid = info.gid = info.mtime = 0
  info.uname = info.gname = ''
  return info


if __name__ == '__main__':
  main()

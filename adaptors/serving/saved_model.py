"""Makes a TensorFlow SavedModel of an exported model.

The compiled function is the one of `pax_compat.inference.exporting`; TensorFlow
runs it with XLA. The weights are variables of the SavedModel.
"""

import os
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors
from pax_compat.inference import exporting
from pax_compat.runs import files, job_dir

SIGNATURE = 'serving_default'


def write(export_folder: str | os.PathLike, folder: str | os.PathLike) -> None:
  """Writes a SavedModel with the signature `serving_default`.

  It takes the fields of a batch by name, and returns the outputs by name.

  Args:
    export_folder: what `TrainedModel.export` wrote.
    folder: a new or empty folder.

  Raises:
    UserError: the exported model cannot be read, or the folder has files.
  """
  path = job_dir.local_path(folder)
  if files.children(path):
    raise errors.UserError(f'{path} has files; expected a new or empty folder')
  exported = exporting.open_folder(export_folder)
  tf = lingvo_runtime.tensorflow()
  jax2tf = lingvo_runtime.module('jax.experimental.jax2tf')
  module = tf.Module()
  names = sorted(exported.weights)
  # Names of attributes have no dots; the order is that of the names.
  module.weights = [tf.Variable(exported.weights[n], name=n) for n in names]
  predict = jax2tf.convert(
    exported.function.call,
    polymorphic_shapes=[None, _polymorphic(exported)],
    with_gradient=False,
    native_serialization_platforms=exported.function.platforms,
  )
  signature = [
    tf.TensorSpec(
      [None if size == 'b' else size for size in spec['shape']],
      spec['dtype'],
      name=name,
    )
    for name, spec in exported.inputs.items()
  ]

  def serve(*fields):
    batch = dict(zip(exported.inputs, fields, strict=True))
    return predict(dict(zip(names, module.weights, strict=True)), batch)

  module.predict = tf.function(
    serve, autograph=False, jit_compile=True, input_signature=signature
  )
  tf.saved_model.save(
    module,
    str(path),
    signatures={SIGNATURE: module.predict.get_concrete_function()},
  )


def _polymorphic(exported: exporting.ExportedModel) -> dict[str, Any]:
  """Returns which dimensions of the fields may have any size."""
  return {
    name: '(b, ...)' if spec['shape'][:1] == ['b'] else None
    for name, spec in exported.inputs.items()
  }


def open_saved_model(folder: str | os.PathLike) -> Any:
  """Returns the serving signature of a SavedModel, a function of tensors."""
  tf = lingvo_runtime.tensorflow()
  loaded = tf.saved_model.load(str(job_dir.local_path(folder)))
  signature = loaded.signatures[SIGNATURE]
  signature.owner = loaded  # Its variables live as long as it does.
  return signature

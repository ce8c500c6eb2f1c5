"""Exports a trained model as a compiled function and its weights.

    exported/
      predict.jax_export    the function (weights, batch) -> outputs, StableHLO
      weights.msgpack       the weights by path, in flax's format
      export.json           the experiment, step, inputs and outputs

`open_folder` needs JAX and flax, and nothing of the experiment. The batch may
have any number of rows, and the platform may be another one; but for a model
that is bridged, in part or as a whole: that is compiled for batches of one size
on one platform.

Shapes: B batch.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fiddle as fdl
import jax
import jax.export
import numpy as np
from absl import logging
from fiddle import daglish
from flax import serialization, traverse_util
from jax.sharding import AbstractMesh, AxisType

from pax_compat import checkpoints, errors
from pax_compat.nested_map import NestedMap
from pax_compat.runs import files, job_dir

FUNCTION, WEIGHTS, METADATA = (
  'predict.jax_export',
  'weights.msgpack',
  'export.json',
)
# Errors of code that needs a number where there is a symbol.
_NEEDS_ROWS = (
  jax.errors.ConcretizationTypeError,
  jax.errors.InconclusiveDimensionOperation,
)
# Rows of a batch to find out which fields are used.
_SOME_ROWS = 8
# The platforms of a model that is exported on a CPU.
_PLATFORMS = ('cpu', 'cuda', 'tpu')


@dataclasses.dataclass(frozen=True)
class ExportedModel:
  """An exported model.

  Attributes:
    function: the function (weights, batch) -> outputs.
    weights: by dotted path.
    inputs: shape and dtype of each field of a batch; the first dimension is the
      string `b` for any number of rows.
    outputs: names of the outputs.
    metadata: `export.json`.
  """

  function: jax.export.Exported
  weights: dict[str, np.ndarray]
  inputs: dict[str, dict]
  outputs: list[str]
  metadata: dict[str, Any]

  def predict(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns the outputs of a batch by name.

    Args:
      batch: arrays [B, ...] by name; other fields than `inputs` are ignored.

    Raises:
      UserError: a field is missing or has another shape.
    """
    arrays = {}
    for name, spec in self.inputs.items():
      if name not in batch:
        raise errors.UserError(
          f'the batch has no field {name!r}{errors.did_you_mean(name, batch)};'
          f' expected {", ".join(self.inputs)}'
        )
      array = np.asarray(batch[name], spec['dtype'])
      known = spec['shape']
      if array.shape[:1] and known[0] == 'b':
        known = [array.shape[0], *known[1:]]
      if list(array.shape) != known:
        raise errors.UserError(
          f'the batch field {name!r} has the shape {list(array.shape)};'
          f' expected {spec["shape"]}'
        )
      arrays[name] = array
    return self.function.call(self.weights, arrays)


def export(
  model: Any,
  folder: str | os.PathLike,
  *,
  batch: Mapping[str, Any] | None = None,
  rows: int | None = None,
  outputs: Sequence[str] = (),
  platforms: Sequence[str] = (),
) -> None:
  """Writes a trained model.

  Args:
    model: the `TrainedModel`.
    folder: a new or empty folder, local.
    batch: a batch, or its shapes; all but the number of rows is fixed. None for
      the shape of the first training batch.
    rows: the number of rows of a batch; None, the default, for any. A model
      whose code depends on it needs one; one that is bridged takes that of
      `batch` by default, which is logged.
    outputs: names of the predictions; by default `logits`, or without such
      all of them. Fields that they do not depend on, such as the labels, are no
      inputs.
    platforms: what it can run on; by default that of this process, and if this
      is a CPU on GPUs and TPUs, too. A model that is bridged runs on one.

  Raises:
    UserError: the folder has files, a name is unknown, or several platforms are
      given for a model that is bridged.
  """
  path = job_dir.local_path(folder)
  if files.children(path):
    raise errors.UserError(f'{path} has files; expected a new or empty folder')
  if jax.process_count() > 1:
    raise errors.UserError(
      'a model is exported by one process; load it in one, with'
      ' --multiprocess=false'
    )
  if _is_for_one_shape(model.experiment.task):
    rows, platforms = _one_shape(model, batch, rows, platforms)
  with _explained(type(model.program.model).__name__):
    some = _specs(model, batch, rows or _SOME_ROWS)
    names = _outputs(model, some, outputs)
    used = _used(_exported(model, some, names, platforms), model, some)
    specs = {
      name: spec
      for name, spec in _specs(model, batch, rows).items()
      if name in used
    }
    exported = _exported(model, specs, names, platforms, dropped=some)
    function = exported.serialize()
  weights = {
    name: np.asarray(jax.device_get(leaf))
    for name, leaf in checkpoints.state_paths(model.mdl_vars).items()
  }
  metadata = {
    'experiment': model.experiment.name,
    'step': model.step,
    'inputs': {
      name: {'shape': [rows or 'b', *spec.shape[1:]], 'dtype': str(spec.dtype)}
      for name, spec in specs.items()
    },
    'outputs': list(names),
    'platforms': list(exported.platforms),
  }
  files.make_folder(path)
  files.replace(path / FUNCTION, function)
  files.replace(path / WEIGHTS, serialization.msgpack_serialize(weights))
  job_dir.replace_text(path / METADATA, json.dumps(metadata, indent=2) + '\n')
  logging.info('exported step %d to %s', model.step, path)


def _is_for_one_shape(task: Any) -> bool:
  """Whether a layer of the task says `ONE_SHAPE_AND_PLATFORM`."""
  return any(
    getattr(fdl.get_callable(node), 'ONE_SHAPE_AND_PLATFORM', False)
    for node, _ in daglish.iterate(task)
    if isinstance(node, fdl.Buildable)
  )


def _one_shape(
  model: Any, batch: Any, rows: int | None, platforms: Sequence[str]
) -> tuple[int, tuple[str]]:
  """Returns rows and platform of a model that is compiled for one of each."""
  if len(platforms) > 1:
    raise errors.UserError(
      f'platforms={list(platforms)}: a model that is bridged is exported for'
      ' one platform'
    )
  chosen = (*platforms, jax.default_backend())[0]
  if rows is None:
    example = model.example if batch is None else batch
    rows = next(iter(checkpoints.state_paths(example).values())).shape[0]
    logging.warning(
      'a model that is bridged is exported for one shape: batches of %d rows,'
      ' on %s; rows=... chooses another number',
      rows,
      chosen,
    )
  return rows, (chosen,)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
  """Raises the errors of tracing and lowering a model as UserErrors."""
  try:
    yield
  except errors.UserError:
    raise
  except _NEEDS_ROWS as e:
    raise errors.UserError(
      f'{name} cannot be exported for any number of rows; expected'
      f' export(..., rows=8), for example: {errors.one_line(e)}'
    ) from e
  except Exception as e:
    # Operations that StableHLO does not have, such as those of a bridge.
    raise errors.UserError(
      f'{name} cannot be exported: {errors.one_line(e) or type(e).__name__}'
      f' ({errors.location_of(e)})'
    ) from e


def open_folder(folder: str | os.PathLike) -> ExportedModel:
  """Returns the model that `export` wrote.

  Args:
    folder: the folder.

  Raises:
    UserError: it is not such a folder, or a file is damaged.
  """
  path = job_dir.local_path(folder)
  try:
    metadata = files.parse_json((path / METADATA).read_bytes())
    function = jax.export.deserialize((path / FUNCTION).read_bytes())
    weights = serialization.msgpack_restore((path / WEIGHTS).read_bytes())
    return ExportedModel(
      function, weights, metadata['inputs'], metadata['outputs'], metadata
    )
  except FileNotFoundError as e:
    raise errors.UserError(
      f'{path} is not an exported model: {e.filename} is missing'
    ) from e
  except Exception as e:
    # The libraries have error types of their own.
    raise errors.UserError(
      f'the exported model in {path} is damaged: {errors.one_line(e)}'
    ) from e


def _specs(
  model: Any, batch: Any, rows: int | None
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shapes of the fields by dotted path; `rows` None is symbolic."""
  example = model.example if batch is None else batch
  found = checkpoints.state_paths(
    jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype),
      NestedMap.from_nested(dict(example)),
    )
  )
  if rows is None:
    [rows] = jax.export.symbolic_shape('b')
  return {
    name: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
    for name, x in found.items()
    if x.shape and x.dtype.kind not in 'OSU'
  }


def _predictions(
  model: Any, weights: dict, fields: dict, dropped: dict
) -> dict:
  """Computes all predictions by dotted path.

  Args:
    model: the `TrainedModel`.
    weights: by dotted path.
    fields: of the batch by dotted path.
    dropped: shapes of more fields, whose values do not matter.
  """
  rows = next(iter(fields.values())).shape[0]
  zeros = {
    name: jax.numpy.zeros((rows, *x.shape[1:]), x.dtype)
    for name, x in dropped.items()
    if name not in fields
  }
  batch = NestedMap.from_nested(
    traverse_util.unflatten_dict({**fields, **zeros}, sep='.')
  )
  structure = jax.tree.structure(model.mdl_vars)
  paths = checkpoints.state_paths(model.mdl_vars)
  mdl_vars = jax.tree.unflatten(structure, [weights[path] for path in paths])
  mesh = model.program.mesh
  alone = AbstractMesh(
    (1,) * len(mesh.axis_names),
    mesh.axis_names,
    axis_types=(AxisType.Auto,) * len(mesh.axis_names),
  )
  found = model.predictions(mdl_vars, batch, mesh=alone)
  # For a model whose predictions have no names.
  named = getattr(model.program.model, 'named_predictions', lambda x: x)
  found = named(found)
  return {
    name: leaf
    for name, leaf in checkpoints.state_paths(found).items()
    if hasattr(leaf, 'dtype')
  }


def _weight_specs(model: Any) -> dict[str, jax.ShapeDtypeStruct]:
  return {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype)
    for name, x in checkpoints.state_paths(model.mdl_vars).items()
  }


def _outputs(model: Any, specs: dict, names: Sequence[str]) -> list[str]:
  known = jax.eval_shape(
    lambda w, b: _predictions(model, w, b, {}), _weight_specs(model), specs
  )
  for name in names:
    if name not in known:
      raise errors.UserError(
        f'the model has no prediction {name!r}'
        + errors.did_you_mean(name, known)
      )
  if names:
    return list(names)
  return ['logits'] if 'logits' in known else list(known)


def _exported(
  model: Any,
  specs: dict,
  names: Sequence[str],
  platforms: Sequence[str],
  dropped: Mapping[str, Any] | None = None,
) -> jax.export.Exported:
  def predict(weights, batch):
    found = _predictions(model, weights, batch, dict(dropped or {}))
    return {name: found[name] for name in names}

  here = jax.default_backend()
  chosen = platforms or (_PLATFORMS if here == 'cpu' else None)
  return jax.export.export(jax.jit(predict), platforms=chosen)(
    _weight_specs(model), specs
  )


def _used(exported: jax.export.Exported, model: Any, specs: dict) -> list[str]:
  """Returns the names of the fields that the outputs depend on."""
  weights = len(_weight_specs(model))
  kept = set(exported.module_kept_var_idx)
  # Dicts are flattened in the order of their keys.
  used = [n for i, n in enumerate(sorted(specs), weights) if i in kept]
  return used or sorted(specs)[:1]

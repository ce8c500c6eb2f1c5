"""What `inspect_checkpoint` prints of the checkpoints of a run."""

import datetime
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pax_compat import errors
from pax_compat.checkpoints import stored
from pax_compat.checkpoints.manifests import Manifests
from pax_compat.checkpoints.stored_arrays import type_text
from pax_compat.runs import files, job_dir


def print_steps(
  folder: Any, *, verifies: bool, only: int | None = None
) -> bool:
  """Prints a line for each checkpoint; returns whether all are intact.

  Args:
    folder: of the checkpoints, of `folder_of`.
    verifies: whether all files are read.
    only: the step of the only checkpoint to print; None for all.

  Raises:
    UserError: the step `only` has no checkpoint.
  """
  manifests = Manifests(folder)
  print(folder)
  is_intact = True
  steps, lost = manifests.steps(), manifests.lost_steps()
  if only is not None:
    if only not in (*steps, *lost):
      raise errors.UserError(
        f'{folder} has no checkpoint of step {only}; expected one of'
        f' {", ".join(map(str, (*steps, *lost)))}'
      )
    steps, lost = ([s for s in some if s == only] for some in (steps, lost))
  for step in steps:
    problem = manifests.problem(step) if verifies else None
    is_intact &= problem is None
    verdict = 'intact' if problem is None else f'DAMAGED: {problem}'
    print(f'  {_line(manifests, step)}{f"  {verdict}" * verifies}')
  for step in lost:
    print(f'  step {step}  has files, but its manifest is lost')
  return is_intact and not lost


def folder_of(path: str) -> Any:
  """Returns the folder of the checkpoints of a run, or of a path to it.

  Raises:
    UserError: there are none.
  """
  folder = job_dir.answering_path(path)
  inner = folder / stored.FOLDER
  found = inner if files.children(inner) else folder
  if not files.children(found / 'manifests') and not any(
    child.name.isdigit() for child in files.children(found)
  ):
    raise errors.UserError(
      f'{path} has no checkpoints; expected the folder of a run, or its folder'
      f' {stored.FOLDER}'
    )
  return found


def _line(manifests: Manifests, step: int) -> str:
  about = manifests.read(step)
  if not about:
    return f'step {step}  its manifest is damaged'
  size = sum(one['bytes'] for one in about['files'].values())
  text = f'step {step}  {size:,} bytes in {len(about["files"])} files'
  since = about.get('kept_since')
  if about.get('kept') and since is not None:
    when = datetime.datetime.fromtimestamp(since).isoformat(' ', 'seconds')
    text += f'  kept permanently, saved {when}'
  return text


def print_arrays(one: stored.StoredCheckpoint):
  """Prints path, type and range of each array of a checkpoint."""
  total = sum(math.prod(about['shape']) for about in one.arrays.values())
  print(f'step {one.step}: {len(one.arrays)} arrays, {total:,} elements')
  for path in one.arrays:
    value = _value(one, path)
    print(f'  {path}  {type_text(one.arrays[path])}{_range(value)}')


def print_differences(
  one: stored.StoredCheckpoint, path: str, step: int | None
) -> bool:
  """Prints how two checkpoints differ; returns whether they are equal.

  Args:
    one: a checkpoint.
    path: of the folder of the other one.
    step: of the other one; None for the same step, or else the newest.
  """
  folder = folder_of(path)
  if step is None and one.step in Manifests(folder).steps():
    step = one.step
  other = stored.StoredCheckpoint(folder, step)
  print(f'step {one.step} of {one.files.parent}')
  print(f'step {other.step} of {other.files.parent}')
  lines = list(_differences(one, other))
  for line in lines:
    print(f'  {line}')
  print(f'{len(lines)} differences' if lines else 'no differences')
  return not lines


def _differences(
  one: stored.StoredCheckpoint, other: stored.StoredCheckpoint
) -> Iterator[str]:
  for path in sorted(one.arrays.keys() | other.arrays.keys()):
    types = [type_text(x.arrays.get(path)) for x in (one, other)]
    if types[0] != types[1]:
      yield f'{path}: {types[0]} and {types[1]}'
      continue
    left, right = _value(one, path), _value(other, path)
    if left.tobytes() == right.tobytes():
      continue
    if not left.size or left.dtype.kind not in 'fiuV':
      yield f'{path}: other values'
      continue
    change = np.abs(left.astype(np.float64) - right.astype(np.float64))
    yield (
      f'{path}: {np.count_nonzero(change):,} of {left.size:,} elements differ,'
      f' by at most {change.max():.6g}'
    )


def _value(one: stored.StoredCheckpoint, path: str) -> np.ndarray:
  """Returns an array, on the host."""
  about = one.arrays[path]
  dtype = about['dtype']
  if 'prng_impl' in about:
    dtype = jax.random.key(0, impl=about['prng_impl']).dtype
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  wanted = jax.ShapeDtypeStruct(tuple(about['shape']), dtype, sharding=device)
  value = one.read({path: wanted})[path]
  if 'prng_impl' in about:
    value = jax.random.key_data(value)
  return np.asarray(value)


def _range(value: np.ndarray) -> str:
  if not value.size or value.dtype.kind not in 'fV':
    return ''
  value = value.astype(np.float32)
  finite = np.isfinite(value)
  text = f'  from {value[finite].min():.4g} to' if finite.any() else ''
  text += f' {value[finite].max():.4g}' if finite.any() else ''
  wrong = value.size - int(finite.sum())
  return f'{text}  {wrong:,} NOT FINITE' if wrong else text

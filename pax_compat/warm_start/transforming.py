"""`restore_transformations`: a run continues with other names of its arrays.

They are Orbax's `Transform`s, by regular expressions of the names of arrays of
the new state, such as `mdl_vars/params/lm/(.*)`:

    task.train.restore_transformations = {
      r'mdl_vars/params/lm/(.*)': orbax.checkpoint.Transform(
        original_key=r'mdl_vars/params/decoder/\\1'
      ),
      'mdl_vars/params/head/.*': orbax.checkpoint.Transform(use_fallback=True),
    }

An array that none matches has the name that it had. They apply to a checkpoint
that does not fit the task, so not to those that the run saves from then on.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from pax_compat import checkpoints, errors
from pax_compat.checkpoints import stored_arrays
from pax_compat.trainer import program

_FIELD = 'Train.restore_transformations'
_MAX_LISTED = 8


def needed(
  train: Any, stored: checkpoints.StoredCheckpoint, state: Any
) -> bool:
  """Whether a checkpoint is restored by the transformations of a task.

  Args:
    train: settings of training.
    stored: the checkpoint.
    state: shapes and dtypes of the state.
  """
  if not train.restore_transformations:
    return False
  wanted = stored_arrays.array_metadata(checkpoints.state_paths(state))
  return bool(stored_arrays.differences(stored.arrays, wanted))


def restore(
  task_program: program.TaskProgram,
  stored: checkpoints.StoredCheckpoint,
  batch: Any,
) -> program.TrainState:
  """Returns the state that transformations make of a checkpoint.

  Args:
    task_program: of the task, with the transformations.
    stored: the checkpoint.
    batch: a batch of this process, or its shapes.

  Raises:
    UserError: a transformation is not supported or matches nothing, or a source
      does not exist or has another shape.
  """
  rules = _rules(task_program.task.train.restore_transformations)
  state = task_program.abstract_state
  wanted = checkpoints.state_paths(state)
  sources = {path.replace('.', '/'): path for path in stored.arrays}
  leaves, new, missing = {}, [], []
  for path, like in wanted.items():
    name = path.replace('.', '/')
    rule, original = _applied(rules, name)
    if rule is not None and rule.use_fallback:
      new.append(path)
      continue
    if original not in sources:
      missing.append(
        f'  {original} for {name}{errors.did_you_mean(original, sources)}'
      )
      continue
    leaves[path] = _read(stored, sources[original], like, rule)
  if missing:
    raise errors.UserError(
      f'{_FIELD}: checkpoint {stored.step} lacks these arrays:\n'
      + '\n'.join(missing[:_MAX_LISTED])
      + '\nexpected an original_key for them, or use_fallback=True'
    )
  unused = [rule.pattern.pattern for rule in rules if not rule.used]
  if unused:
    names = [path.replace('.', '/') for path in wanted]
    raise errors.UserError(
      f'{_FIELD}: {unused[0]!r} matches no array'
      + errors.did_you_mean(unused[0], names)
    )
  leaves |= task_program.init_leaves(batch, new)
  logging.info(
    '%s: %d of %d arrays of checkpoint %d are restored, and %d are new',
    _FIELD,
    len(wanted) - len(new),
    len(wanted),
    stored.step,
    len(new),
  )
  return jax.tree.unflatten(
    jax.tree.structure(state), [leaves[path] for path in wanted]
  )


@dataclasses.dataclass
class _Rule:
  pattern: re.Pattern
  original_key: str | None
  use_fallback: bool
  value_fn: Any
  used: bool = False


def _rules(transformations: Mapping[str, Any]) -> list[_Rule]:
  found = []
  for pattern, one in transformations.items():
    get = one.get if isinstance(one, Mapping) else _getter(one)
    if get('multi_value_fn') is not None:
      raise errors.UserError(
        f'{_FIELD}[{pattern!r}] has a multi_value_fn, which is not supported;'
        ' expected a value_fn'
      )
    key = get('original_key')
    compiled = errors.compiled(pattern, _FIELD)
    if isinstance(key, tuple):
      key = '/'.join(key)
    found.append(
      _Rule(compiled, key, bool(get('use_fallback')), get('value_fn'))
    )
  return found


def _getter(transform: Any):
  return lambda name: getattr(transform, name, None)


def _applied(rules, name: str) -> tuple[_Rule | None, str]:
  """Returns the rule of an array, and the name of its source."""
  for rule in rules:
    match = rule.pattern.fullmatch(name)
    if match:
      rule.used = True
      key = rule.original_key
      return rule, name if key is None else match.expand(key)
  return None, name


def _read(stored, path, like, rule) -> jax.Array:
  about = stored.arrays[path]
  function = rule.value_fn if rule is not None else None
  if function is None:
    return stored.read({path: like})[path]
  whole = jax.sharding.NamedSharding(
    like.sharding.mesh, jax.sharding.PartitionSpec()
  )
  original = jax.ShapeDtypeStruct(
    tuple(about['shape']), about['dtype'], sharding=whole
  )
  made = jax.jit(function, out_shardings=like.sharding)(
    stored.read({path: original})[path]
  )
  if made.shape != like.shape:
    raise errors.UserError(
      f'{_FIELD}: value_fn makes {list(made.shape)} of {path}; expected'
      f' {list(like.shape)}'
    )
  return made.astype(like.dtype)

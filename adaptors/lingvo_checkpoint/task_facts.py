"""What a translated task says of the names in its checkpoints."""

from typing import Any

from adaptors.lingvo_checkpoint.mapping import Facts
from adaptors.translate import optimizers
from adaptors.translate.task import TranslatedTask
from adaptors.translate.variable_names import VariableNames
from pax_compat import errors, learners
from pax_compat import optimizers as pax_optimizers
from pax_compat.config import class_name

_KNOWN = (
  pax_optimizers.Adagrad,
  pax_optimizers.Adam,
  pax_optimizers.Sgd,
  pax_optimizers.ShardedAdafactor,
)


def of(params: Any, translated: TranslatedTask) -> Facts:
  """Returns the facts of a task.

  Args:
    params: Lingvo's Params of the task, with its input.
    translated: the task in JAX.

  Raises:
    UserError: it is trained in a way whose checkpoints are not supported.
  """
  learner = translated.config.train.learner
  if learner.__fn_or_cls__ is not learners.Learner:
    raise errors.UserError(
      f'{params.name} is trained by several optimizers, and checkpoints of such'
      ' tasks are not supported; expected one learner with one optimizer'
    )
  optimizer = learner.optimizer
  kind = optimizers.wrapped(optimizer)[-1]
  if optimizers.accumulates(optimizer) or kind.__fn_or_cls__ not in _KNOWN:
    known = ', '.join(k.__name__ for k in _KNOWN)
    raise errors.UserError(
      f'{params.name} is trained by {class_name(optimizer)}, whose checkpoints'
      f' are not supported; expected one of {known}, without micro-batches'
    )
  names = VariableNames(params, translated.variables).by_theta
  return Facts(
    variables=translated.variables,
    names={theta: name.removesuffix(':0') for theta, name in names.items()},
    optimizer=optimizer,
    optimizer_name=_name(params),
  )


def _name(params: Any) -> str:
  """Returns what Lingvo's optimizer calls itself, and its slots."""
  found = params.train.learner or params.train
  found = found[0] if isinstance(found, list | tuple) else found
  optimizer = found.optimizer
  while 'optimizer_tpl' in optimizer:
    optimizer = optimizer.optimizer_tpl
  return optimizer.name

"""Names and noise of Lingvo's variables, read from an instantiated task.

Regular expressions in Params match names of TensorFlow variables, such as
`lm/softmax/weight_0/var:0`, which do not follow from theta paths; and each
layer decides which of its weights get noise. So the task is instantiated in a
separate graph, which allocates nothing.
"""

import functools
import re
from collections.abc import Callable

from adaptors import lingvo_runtime
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, Report
from pax_compat import errors
from pax_compat.learners.variable_names import full_name


class VariableNames:
  """The names of a task's variables, computed at the first use.

  Attributes:
    variables: maps our weights to Lingvo's variables.
  """

  def __init__(
    self,
    params,
    variables: VariableMap,
    scope: str = '',
    report: Report | None = None,
  ):
    """Instantiates nothing yet.

    Args:
      params: the task's Params.
      variables: of the task.
      scope: prefix of Lingvo's names in a model of several tasks.
      report: of the task's translation. After an issue, reading names is an
        error: it takes seconds, and the task is refused anyway.
    """
    self.variables = variables
    self._scope = scope
    self._params = params.Copy()
    self._report = report

  @functools.cached_property
  def _names_and_noisy(self) -> tuple[dict[str, str], frozenset[str]]:
    if self._report and self._report.issues:
      raise errors.UserError('the names of variables are read after an issue')
    return _names_and_noisy(self._params)

  @property
  def by_theta(self) -> dict[str, str]:
    """The name of each variable, such as `lm/w/var:0`, by theta path."""
    names, _ = self._names_and_noisy
    return {theta: f'{self._scope}{name}' for theta, name in names.items()}

  def noisy(self, view: ParamsView) -> set[str]:
    """Returns the paths of our weights to which Lingvo adds noise.

    Args:
      view: gets an issue if one weight is made of several variables of which
        only some get noise.
    """
    _, noisy = self._names_and_noisy
    return self._chosen(lambda theta: theta in noisy, view, 'vn')

  def selected(
    self, selects: Callable[[str], bool], view: ParamsView, field: str
  ) -> set[str]:
    """Returns the paths of our weights whose variables are selected.

    Args:
      selects: returns whether a variable's name is selected.
      view: gets an issue if one weight is made of several variables of which
        only some are selected.
      field: the view's field with the selection.
    """
    return self._chosen(lambda t: selects(self.by_theta[t]), view, field)

  def _chosen(self, selects, view: ParamsView, field: str) -> set[str]:
    """As `selected`, by theta paths."""
    chosen = set()
    for variable in self.variables:
      answers = {bool(selects(theta)) for theta in variable.theta}
      if len(answers) > 1:
        view.issue(
          field,
          f'it selects only some of the variables {", ".join(variable.theta)},'
          f' which are one weight here, {variable.jax}',
        )
      if any(answers):
        chosen.add(variable.jax)
    return chosen


def exactly(paths) -> list[str]:
  """Returns regular expressions for learners that match only these weights."""
  return [re.escape(full_name(path)) for path in sorted(paths)]


def _names_and_noisy(params) -> tuple[dict[str, str], frozenset[str]]:
  """Returns names by theta path, and the theta paths that get noise."""
  tf = lingvo_runtime.module('lingvo.compat')
  base_model = lingvo_runtime.module('lingvo.core.base_model')
  with (
    lingvo_runtime.eager_flag(False),
    tf.Graph().as_default(),
    lingvo_runtime.cluster(),
  ):
    model = base_model.SingleTaskModel.Params(params.Copy()).Instantiate()
    task = model.GetTask()
    names = {theta: v.name for theta, v in task.vars.FlattenItems()}
    theta = task.theta
    before = dict(theta.FlattenItems())
    after = dict(task.AddGlobalVN(theta).FlattenItems())
  noisy = frozenset(k for k, v in before.items() if after[k] is not v)
  return names, noisy

"""Which weights Lingvo means, where only its task can tell.

Regular expressions match names of TensorFlow variables, such as
`lm/softmax/weight_0/var:0`, which no rule derives from theta paths or from
ours; and each layer says itself which of its weights get noise. So the task is
instantiated in a graph of its own, which allocates nothing, and asked.
"""

import functools
import re
from collections.abc import Callable

from adaptors import lingvo_runtime
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.learners.variable_names import full_name


class VariableNames:
  """What a task says of its variables, found out when first asked for.

  Attributes:
    variables: which of our weights are made of which of Lingvo's.
  """

  def __init__(self, params, variables: VariableMap, scope: str = ''):
    """Asks nothing yet.

    Args:
      params: the task's Params.
      variables: of the task.
      scope: what Lingvo's names begin with in a model of several tasks.
    """
    self.variables = variables
    self._scope = scope
    self._params = params.Copy()

  @functools.cached_property
  def _told(self) -> tuple[dict[str, str], frozenset[str]]:
    return _told_by_task(self._params)

  @property
  def by_theta(self) -> dict[str, str]:
    """The name of each variable, such as `lm/w/var:0`, by theta path."""
    told = self._told[0].items()
    return {theta: f'{self._scope}{name}' for theta, name in told}

  def noisy(self, view: ParamsView) -> set[str]:
    """Returns the paths of our weights to which Lingvo adds noise.

    Args:
      view: gets an issue where one weight is made of several variables of which
        only some get noise.
    """
    return self._chosen(lambda theta: theta in self._told[1], view, 'vn')

  def selected(
    self, selects: Callable[[str], bool], view: ParamsView, field: str
  ) -> set[str]:
    """Returns the paths of our weights whose variables are selected.

    Args:
      selects: says of a variable's name whether it is.
      view: gets an issue where one weight is made of several variables of which
        only some are selected.
      field: of the view, that the selection comes from.
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
          f'it is about only some of the variables {", ".join(variable.theta)},'
          f' which are the one weight {variable.jax} here',
        )
      if any(answers):
        chosen.add(variable.jax)
    return chosen


def exactly(paths) -> list[str]:
  """Returns regular expressions of learners that match these weights only."""
  return [re.escape(full_name(path)) for path in sorted(paths)]


def _told_by_task(params) -> tuple[dict[str, str], frozenset[str]]:
  """Returns names by theta path, and which theta paths get noise."""
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

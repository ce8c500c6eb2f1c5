"""The normalisations of GShard's builders."""

from typing import Any

from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.normalizations import norm_layers

# The first of these takes the mean away only to work out the deviation from it,
# and so is the same as the other one.
_OVER_DEVIATION = ('true_ln', 'pn')
_NONE = ('none', 'no_ln')


def norm(
  builder: Any, view: ParamsView, field: str, *, kind: str, names: dict
) -> Translated:
  """Returns a normalisation.

  Args:
    builder: a `gshard_builder.Builder`.
    view: of the Params that say which, for an issue.
    field: the field of those.
    kind: which: 'ln' divides by the root mean square, 'true_ln' and 'pn' by the
      deviation from the mean; 'none' and 'no_ln' leave things as they are.
    names: {theta: path} of each layer that is to be made of it.
  """
  epsilon = builder.layer_norm_epsilon
  if kind in _OVER_DEVIATION:
    variables = []
    for theta, jax in names.items():
      for lingvo, ours in (('scale', 'scale'), ('shift', 'bias')):
        path = f'{theta}.w_{lingvo}.{lingvo}'
        variables.append(Variable((path,), f'{jax}/{ours}'))
    return Translated(
      norm_layers.PrimerNorm.config(epsilon=epsilon), VariableMap(variables)
    )
  if kind in _NONE:
    return Translated(norm_layers.IdentityNorm.config())
  if kind != 'ln':
    known = ', '.join(['ln', *_OVER_DEVIATION, *_NONE])
    view.issue(field, f'{kind!r} is not translated, only {known}')
  if builder.ln_no_scale:
    return Translated(norm_layers.RmsNormNoScale.config(epsilon=epsilon))
  return Translated(
    norm_layers.RmsNorm.config(epsilon=epsilon),
    VariableMap(
      Variable((f'{theta}.w.scale',), f'{jax}/scale')
      for theta, jax in names.items()
    ),
  )

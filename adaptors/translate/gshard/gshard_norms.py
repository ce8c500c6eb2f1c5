"""Translates the norms of GShard's builders."""

from typing import Any

from adaptors.translate.registry import Translated
from adaptors.translate.variables import Variable, VariableMap
from adaptors.translate.view import ParamsView
from pax_compat.layers.normalizations import norm_layers

# Both divide by the standard deviation, and do not subtract the mean.
_OVER_DEVIATION = ('true_ln', 'pn')
_NONE = ('none', 'no_ln')


def norm(
  builder: Any, view: ParamsView, field: str, *, kind: str, names: dict
) -> Translated:
  """Returns a norm.

  Args:
    builder: a `gshard_builder.Builder`.
    view: of the Params with the kind, for an issue.
    field: their field with the kind.
    kind: 'ln' divides by the root mean square, 'true_ln' and 'pn' by the
      standard deviation; 'none' and 'no_ln' are the identity.
    names: {theta: path} of each layer with this config.
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

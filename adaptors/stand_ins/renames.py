"""What Lingvo renamed, moved or removed since the code of a user was written.

`older_names` lets code use the old names of what was renamed. For what was
removed, a hint completes the message of the error:

    >>> current('lingvo.core.lr_schedule')
    'lingvo.core.schedule'
    >>> current('lingvo.core.schedule.LinearLearningRateSchedule')
    'lingvo.core.schedule.LinearSchedule'
    >>> current('my_team.layers.Mine') is None
    True
    >>> hint('lingvo.core.cudnn_rnn_utils')
    '; Lingvo removed it: expected lingvo.core.rnn_cell.LSTMCellSimple'
    >>> hint('my_team.layers.Mine')
    ''
"""

import re
import types
from collections.abc import Mapping

# Modules, by their old names.
MODULES: Mapping[str, str] = {
  'lingvo.core.asr_frontend': 'lingvo.tasks.asr.frontend',
  'lingvo.core.lr_schedule': 'lingvo.core.schedule',
  'lingvo.core.ops.py_x_ops': 'lingvo.core.ops',
  'lingvo.tasks.mt.params.base_config': 'lingvo.tasks.mt.base_config',
}

# Functions and classes, by their old names.
NAMES: Mapping[str, str] = {
  'lingvo.core.base_layer.DefaultVN': 'lingvo.core.py_utils.DefaultVN',
  'lingvo.core.base_layer.DisableVN': 'lingvo.core.py_utils.DisableVN',
  'lingvo.core.base_layer.LayerBase': 'lingvo.core.base_layer.BaseLayer',
  'lingvo.core.base_model.DistillationTask': (
    'lingvo.core.distillation_task.DistillationTask'
  ),
}

# What to use instead of what Lingvo removed.
REMOVED: Mapping[str, str] = {
  'lingvo.core.base_encoder': 'lingvo.core.base_layer.BaseLayer',
  'lingvo.core.batch_major_attention.LocalCausalSelfAttention': (
    'LocalSelfAttention with right_context=0'
  ),
  'lingvo.core.batch_major_attention.LocalCausalSelfAttentionXL': (
    'LocalSelfAttentionXL with right_context=0'
  ),
  'lingvo.core.cudnn_rnn_utils': 'lingvo.core.rnn_cell.LSTMCellSimple',
  'lingvo.core.layers.Gelu': (
    "the activation 'GELU_APPROXIMATE', or 'GELU' for the exact one"
  ),
  'lingvo.core.py_utils.AddGlobalVN': 'AddVN',
  'lingvo.core.py_utils.AddPerStepVN': 'AddVN with per_step=True',
  'lingvo.core.rnn_cell.LSTMCellSimpleDeterministic': (
    'LSTMCellSimple with deterministic=True'
  ),
  'lingvo.jax': 'praxis and paxml, which it became; see docs/your_pax_code.md',
}

# In `lingvo.core.schedule`, TransformerLearningRateSchedule was the name of
# TransformerSchedule, and so on.
_SCHEDULES = 'lingvo.core.schedule.'
_LONG, _SHORT = 'LearningRateSchedule', 'Schedule'

# Python's message; the error has the name as an attribute since Python 3.12.
_IMPORTED = re.compile(r"cannot import name '(\w+)' from ")


def current(name: str) -> str | None:
  """Returns today's full name of what was renamed; None for all others."""
  found = MODULES.get(name) or NAMES.get(name)
  if found is None and name.startswith(_SCHEDULES) and _LONG in name:
    return name.replace(_LONG, _SHORT)
  return found


def hint(name: str) -> str:
  """Returns what to use instead of a removed name, or ''.

  Args:
    name: the full name of a module, or of something in one.
  """
  while name:
    if name in REMOVED:
      return f'; Lingvo removed it: expected {REMOVED[name]}'
    name = name.rpartition('.')[0]
  return ''


def of_error(error: Exception) -> str:
  """Returns the hint for an error about a missing module or name, or ''."""
  names = []
  if isinstance(error, ImportError) and error.name:
    # `from lingvo.core import base_encoder` has the package as its name.
    imported = _IMPORTED.match(str(error))
    names = [f'{error.name}.{imported[1]}'] if imported else []
    names.append(error.name)
  elif isinstance(error, AttributeError):
    if not isinstance(error.obj, types.ModuleType):
      return ''
    if error.obj.__name__ == 'tensorflow':
      return (
        '; TensorFlow 1 had it; expected `from lingvo import compat as tf` in'
        ' place of `import tensorflow as tf`'
      )
    names = [f'{error.obj.__name__}.{error.name}']
  found = (hint(name) for name in names)
  return next((one for one in found if one and one not in str(error)), '')

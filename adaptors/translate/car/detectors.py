"""What translators of Lingvo's detectors share."""

from collections.abc import Mapping

from adaptors.translate.registry import Translated
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView
from pax_compat import base_layer

# What only Lingvo's decoding reads.
_DECODING = (
  'max_nms_boxes',
  'nms_iou_threshold',
  'nms_score_threshold',
  'visualization_classification_threshold',
  'output_decoder',
  'use_oriented_per_class_nms',
  'decode_include_residuals',
)


def read_decoding(view: ParamsView, *others: str):
  """Reads the fields of a model that its loss does not depend on.

  Args:
    view: of the model.
    *others: further fields that only decoding reads.
  """
  for name in (*_DECODING, *others, 'num_classes'):
    view.get(name)
  view.ignore('it is of exported graphs', 'inference_batch_size')


def assembled(
  cls: type[base_layer.BaseLayer],
  parts: Mapping[tuple[str, str], Translated | None],
  **fields,
) -> Translated | None:
  """Returns a layer of translated children; None if one of them is missing.

  Args:
    cls: the layer.
    parts: the children by their names in Lingvo and here.
    **fields: its other fields.
  """
  if None in parts.values():
    return None
  variables = VariableMap()
  for (name, own), part in parts.items():
    fields[f'{own}_tpl'] = part.config
    variables += part.variables.under(name, own)
  return Translated(cls.config(**fields), variables)

"""Lingvo's stock experiments of text, speech and images have translations.

Their Params are those of old runs, as text. The folders `mt`, `asr` and `image`
have the parity tests.
"""

import pytest

from adaptors.params.text import reader
from adaptors.translate.tasks import single
from adaptors.translate.variable_names import VariableNames
from tests.adaptors import native_library

pytestmark = native_library.NEEDS_LINGVO

_NATIVE = (
  'asr.librispeech.Librispeech960Base',
  'asr.librispeech.Librispeech960Grapheme',
  'asr.librispeech.Librispeech960GraphemeTpuV2',
  'image.mnist.LeNet5',
  'mt.wmt14_en_de.WmtEnDeRNMT',
  'mt.wmt14_en_de.WmtEnDeRNMTCloudTpu',
  'mt.wmt14_en_de.WmtEnDeTransformerBase',
  'mt.wmt14_en_de.WmtEnDeTransformerSmall',
  'mt.wmt14_en_de.WmtEnDeTransformerSmallCloudTpu',
  'mt.wmtm16_en_de.WmtCaptionEnDeTransformer',
  'mt.wmtm16_en_de.WmtCaptionEnDeTransformerCloudTpu',
  'mt.xendec.wmt14_en_de.WmtDeEnXEnDec',
  'mt.xendec.wmt14_en_de.WmtEnDeXEnDec',
)


@pytest.mark.slow
@pytest.mark.parametrize('name', _NATIVE)
def test_all_variables_of_lingvo_have_a_place(name, shared_data):
  """At full size; the others need a vocabulary to be built."""
  path = shared_data / 'lingvo_stock' / f'{name}.trainer_params.pbtxt.gz'
  params = reader.read_file(path).params
  task = params.task
  if not task.input:
    task.input = params.input
  translated = single.translate_task(task, name)
  theta = [t for v in translated.variables for t in v.theta]
  assert len(theta) == len(set(theta))
  names = VariableNames(task, translated.variables).by_theta
  assert set(theta) == {t for t in names if not t.startswith('learners[')}

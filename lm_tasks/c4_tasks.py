"""Registers the SeqIO tasks of C4 when it is imported.

For SeqIO's own programs, which find tasks by name:

    seqio_cache_tasks --module_import=lm_tasks.c4_tasks \
      --tasks=c4_lm_v301_gpt --tfds_data_dir=... --output_cache_dir=...

Each task has a second name with its version, such as `c4_lm_v301_gpt_3.0.4`.
"""

from typing import Any

from adaptors import lingvo_runtime
from lm_tasks import c4_pipeline

seqio = lingvo_runtime.seqio()


class _VocabularyOfFolder(seqio.SentencePieceVocabulary):
  """The vocabulary that belongs to the data folder of a TFDS source.

  The path is found at first use, as SeqIO's programs set the data folder after
  they have found the task.
  """

  def __init__(self, source: Any):
    super().__init__(sentencepiece_model_file='')
    self._source = source

  def _model_context(self):
    if not self._sentencepiece_model_file:
      folder = self._source.tfds_dataset.data_dir
      self._sentencepiece_model_file = c4_pipeline.vocabulary_in(folder)
    return super()._model_context()


def _register():
  for name, spec in c4_pipeline.TASKS.items():
    for full_name in (name, f'{name}_{spec.version}'):
      source = c4_pipeline.make_source(spec, tfds_data_dir=None)
      task = c4_pipeline.make_task(
        full_name, spec, source=source, vocabulary=_VocabularyOfFolder(source)
      )
      seqio.TaskRegistry.add_provider(full_name, task)


_register()

"""Makes a TensorFlow SavedModel of an exported model.

python -m adaptors.serving --export_dir=exported --saved_model_dir=served
"""

from absl import flags

from pax_compat.cli import command_line

_EXPORT_DIR = flags.DEFINE_string(
  'export_dir', None, 'Folder that TrainedModel.export wrote.'
)
_SAVED_MODEL_DIR = flags.DEFINE_string(
  'saved_model_dir', None, 'New folder for the SavedModel.'
)


def main(argv: list[str]) -> int:
  """Writes the SavedModel; returns the exit status."""
  command_line.no_arguments(argv)
  command_line.require(_EXPORT_DIR, _SAVED_MODEL_DIR)
  # Imported late: it imports JAX and TensorFlow.
  from adaptors.serving import saved_model

  saved_model.write(_EXPORT_DIR.value, _SAVED_MODEL_DIR.value)
  print(f'wrote {_SAVED_MODEL_DIR.value}', flush=True)
  return 0


if __name__ == '__main__':
  command_line.run(main)

"""The core must run where TensorFlow is not installed."""

from tests.pax_compat.launching import run_script

_IMPORT_ALL = """
  import importlib, pathlib, sys
  import pax_compat
  root = pathlib.Path(pax_compat.__file__).parent
  names = []
  # Folders without __init__.py count too, so this reads the files.
  for path in sorted(root.rglob('*.py')):
    parts = path.relative_to(root.parent).with_suffix('').parts
    if parts[-1] == '__init__':
      parts = parts[:-1]
    if parts[-1] == '__main__':
      continue
    names.append('.'.join(parts))
  for name in names:
    importlib.import_module(name)
    for banned in ('tensorflow', 'lingvo', 'seqio', 'adaptors', 'lm_tasks'):
      if banned in sys.modules:
        sys.exit(f'importing {name} imported {banned}')
  print('\\n'.join(names))
"""


def test_no_module_imports_tensorflow():
  done = run_script(_IMPORT_ALL)
  assert done.returncode == 0, done.stderr
  assert 'pax_compat.checkpoints' in done.stdout.splitlines()

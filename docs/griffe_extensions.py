"""How the API reference reads our modules."""

import importlib

import griffe


class ExportedLayers(griffe.Extension):
  """Shows the layers of packages that export all those of their modules.

  Which ones they are is found out by importing the package; see
  `layer_core/exports.py`.
  """

  def on_package(self, *, pkg: griffe.Module, **kwargs):
    """Adds the layers to the packages that show none."""
    _add_layers(pkg)


def _add_layers(package: griffe.Module):
  if '_layers' in package.attributes:
    layers = importlib.import_module(package.path)._layers
    for name, layer in layers.items():
      if name not in package.members:
        target = f'{layer.__module__}.{layer.__qualname__}'
        package.set_member(name, griffe.Alias(name, target))
    package.exports = [
      name for name in package.exports or () if isinstance(name, str)
    ] + list(layers)
  for module in list(package.modules.values()):
    if not module.is_alias:
      _add_layers(module)


class DoctestBlocks(griffe.Extension):
  """Fences the lines from `>>>` to the next empty line."""

  def on_instance(self, *, obj: griffe.Object, **kwargs):
    """Rewrites the docstring of a module, class, function or attribute."""
    if obj.docstring:
      obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
  """Returns a docstring whose doctests are Markdown code blocks."""
  lines, indent = [], None
  for line in text.split('\n'):
    if indent is None and line.lstrip().startswith('>>> '):
      indent = line[: -len(line.lstrip())]
      lines.append(f'{indent}```python')
    elif indent is not None and not line.strip():
      lines.append(f'{indent}```')
      indent = None
    lines.append(line)
  if indent is not None:
    lines.append(f'{indent}```')
  return '\n'.join(lines)

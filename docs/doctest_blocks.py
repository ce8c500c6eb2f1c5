"""Doctests of docstrings become code blocks in the API reference."""

import griffe


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

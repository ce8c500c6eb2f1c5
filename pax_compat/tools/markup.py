"""HTML made of elements, in which every text is escaped."""

import html


class Html(str):
  """HTML, and no text: it goes into a page as it is."""

  __slots__ = ()


# Elements without an end.
_EMPTY = ('input', 'meta')


def tag(name: str, /, *children: str | None, **attributes: str | bool) -> Html:
  """Returns an element.

  Args:
    name: of the element.
    *children: `Html` as it is; texts, which are escaped; None for nothing.
    **attributes: `class_` stands for `class`, `data_x` for `data-x`. True is an
      attribute without a value, False none.
  """
  given = ''.join(
    _attribute(key.rstrip('_').replace('_', '-'), value)
    for key, value in attributes.items()
    if value is not False
  )
  if name in _EMPTY:
    return Html(f'<{name}{given}>')
  return Html(f'<{name}{given}>{joined(*children)}</{name}>')


def joined(*children: str | None) -> Html:
  """Returns children one after the other; see `tag`."""
  return Html(
    ''.join(
      child if isinstance(child, Html) else html.escape(child)
      for child in children
      if child is not None
    )
  )


def _attribute(name: str, value: str | bool) -> str:
  return f' {name}' if value is True else f' {name}="{html.escape(value)}"'

"""Charts of the metrics of runs, drawn by Plotly in the page."""

import json
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly import offline

from pax_compat.tools.markup import Html, joined, tag
from pax_compat.tools.run_report import curves, records

_MAX_POINTS = 2000
# Of more metrics in a group, such as the norms of all weights, one chart.
_MAX_CHARTS = 12
_MAX_POINTS_OF_MANY = 200
_GREY = '#888'
_GRID = 'rgba(136,136,136,0.25)'
# Draws a chart when it is first seen: a closed part gives it no size.
_DRAW = Html("""
for (const place of document.querySelectorAll('.chart')) {
  const draw = () => {
    if (place.dataset.drawn || place.closest('details:not([open])')) return;
    place.dataset.drawn = 'yes';
    const figure = JSON.parse(place.querySelector('script').textContent);
    Plotly.newPlot(place, figure.data, figure.layout,
        {displaylogo: false, responsive: true});
  };
  draw();
  const part = place.closest('details');
  if (part) part.addEventListener('toggle', draw);
}
""")


def scripts() -> Html:
  """Returns Plotly's own JavaScript and what draws the charts: once a page."""
  return joined(
    tag('script', Html(offline.get_plotlyjs())), tag('script', _DRAW)
  )


def of_group(runs: Sequence[records.Run], names: Sequence[str]) -> Html:
  """Returns the charts of a group of metrics.

  Args:
    runs: of the report.
    names: of the metrics. If there are many, they share one chart for each run.
  """
  if len(names) > _MAX_CHARTS:
    return _grid(*(_of_many(run, names) for run in runs))
  return _grid(*(of_metric(runs, name) for name in names))


def of_metric(runs: Sequence[records.Run], metric: str) -> Html:
  """Returns the chart of a metric, with the curves of all runs and splits."""
  figure = go.Figure()
  for line in curves.of_metric(runs, metric, most=_MAX_POINTS):
    dash = line.dash.replace(' ', 'px,') + 'px' if line.dash else 'solid'
    few = len(line.steps) < 30
    figure.add_scatter(
      x=line.steps,
      y=line.values,
      name=line.name,
      mode='lines+markers' if few else 'lines',
      line=dict(color=line.colour, dash=dash, width=2),
      marker=dict(size=5),
    )
  return _chart(figure, curves.THROUGHPUT.get(metric, metric))


def _of_many(run: records.Run, names: Sequence[str]) -> Html:
  """Returns one chart of many metrics of a run."""
  figure = go.Figure()
  for (split, name), curve in run.curves.items():
    if name in names:
      steps, values = curves.thinned(
        curve.steps, curve.values, _MAX_POINTS_OF_MANY
      )
      label = name if split == curves.TRAIN else f'{name} {split}'
      figure.add_scatter(x=steps, y=values, name=label, mode='lines')
  figure.update_layout(showlegend=False, hovermode='closest')
  prefix = names[0].partition('/')[0]
  return _chart(figure, f'{prefix} ({len(names)} metrics) of {run.label}')


def _chart(figure: go.Figure, title: str) -> Html:
  axis = dict(gridcolor=_GRID, zerolinecolor=_GRID, linecolor=_GREY)
  figure.update_layout(
    template=None,
    # As text: Plotly takes a title for HTML.
    title=dict(
      text=str(joined(title)), font=dict(size=14), x=0, xanchor='left'
    ),
    height=320,
    margin=dict(l=56, r=12, t=40, b=40),
    paper_bgcolor='rgba(0,0,0,0)',
    plot_bgcolor='rgba(0,0,0,0)',
    font=dict(color=_GREY),
    xaxis=axis,
    yaxis=axis,
    legend=dict(orientation='h', y=-0.12, yanchor='top', x=0, xanchor='left'),
    modebar=dict(bgcolor='rgba(0,0,0,0)', color=_GREY),
  )
  if figure.layout.hovermode is None:
    figure.update_layout(hovermode='x unified')
  # No `</script>` or comment can end or begin within it.
  data = json.dumps(json.loads(figure.to_json())).replace('<', '\\u003c')
  return tag(
    'div',
    tag('script', Html(data), type='application/json'),
    class_='chart',
    data_title=title,
  )


def _grid(*charts: Html) -> Html:
  return tag('div', *charts, class_='charts')

"""Style and script of the report's page."""

from pax_compat.tools.markup import Html

# Colors are named by meaning; each status has a class.
STYLE = Html("""
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2024; --soft: #5c6670;
  --line: #dfe3e8; --code: #eef1f4; --accent: #2457c5;
  --native: #14713d; --native-back: #e0f4e7;
  --bridged: #8a5300; --bridged-back: #fdf0d8;
  --impossible: #b3261e; --impossible-back: #fde7e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1d2125; --text: #e6e9ec; --soft: #9aa5b0;
    --line: #33393f; --code: #272c31; --accent: #8ab0ff;
    --native: #7bd6a0; --native-back: #16331f;
    --bridged: #f0bd6a; --bridged-back: #38290f;
    --impossible: #ff9d94; --impossible-back: #41191a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem;
  background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif;
}
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
code, pre, .name { font-family: ui-monospace, Menlo, Consolas, monospace; }
code, pre { font-size: .87em; overflow-wrap: anywhere; }
pre {
  background: var(--code); padding: .6rem .8rem; border-radius: 6px;
  overflow-x: auto; white-space: pre-wrap;
}
ul { margin: .25rem 0; padding-left: 1.2rem; }
li { overflow-wrap: anywhere; }
.tools {
  display: flex; flex-wrap: wrap; gap: .5rem; align-items: center;
  position: sticky; top: 0; background: var(--page); padding: .75rem 0;
  z-index: 1;
}
.tools input {
  flex: 1 1 14rem; min-width: 0; font: inherit; color: inherit;
  background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .45rem .7rem;
}
.tools button {
  font: inherit; cursor: pointer; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 999px; padding: .3rem .8rem;
}
.tools button[aria-pressed=true] {
  border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent);
}
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.experiment {
  background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; margin: .5rem 0;
}
.experiment > summary {
  display: grid; cursor: pointer; padding: .6rem .9rem; gap: .15rem 1rem;
  grid-template-columns: minmax(0, 1fr) 8.5rem 5rem 6rem;
  align-items: baseline; list-style: none;
}
summary::-webkit-details-marker { display: none; }
.experiment > summary .name { font-weight: 600; overflow-wrap: anywhere; }
.experiment > summary .next { grid-column: 1 / -1; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.heads {
  display: grid; padding: 0 .9rem; gap: 0 1rem; font-size: .85em;
  grid-template-columns: minmax(0, 1fr) 8.5rem 5rem 6rem;
}
.body { border-top: 1px solid var(--line); padding: .25rem .9rem .9rem; }
.badge {
  border-radius: 999px; padding: .05rem .6rem; font-size: .87em;
  font-weight: 600; white-space: nowrap; justify-self: start;
}
.native { color: var(--native); background: var(--native-back); }
.bridged, .partly { color: var(--bridged); background: var(--bridged-back); }
.impossible { color: var(--impossible); background: var(--impossible-back); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93em; }
th, td {
  text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid var(--line);
}
td { overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
.tree, .tree ul { list-style: none; padding-left: 0; }
.tree ul { padding-left: 1.1rem; border-left: 1px solid var(--line); }
.tree li { margin: .15rem 0; }
.tree summary { cursor: pointer; list-style: none; }
.tree summary::before { content: '\\25b8\\00a0'; color: var(--soft); }
.tree details[open] > summary::before { content: '\\25be\\00a0'; }
.leaf { padding-left: 1em; }
.tree ul:empty { display: none; }
.reasons { color: var(--soft); }
.tree .badge { font-weight: 600; font-family: ui-monospace, monospace; }
.none { padding: 2rem 0; text-align: center; }
[hidden] { display: none !important; }
@media (max-width: 40rem) {
  body { padding: 1rem .6rem 3rem; }
  .heads { display: none; }
  .experiment > summary { grid-template-columns: auto 1fr auto; }
  .experiment > summary .name { grid-column: 1 / -1; }
  table.stacked thead { display: none; }
  table.stacked tr { display: block; padding: .3rem 0;
    border-bottom: 1px solid var(--line); }
  table.stacked td { display: block; border: 0; padding: .05rem 0; }
  table.stacked td[data-head]:not(:empty)::before {
    content: attr(data-head) ': '; color: var(--soft);
  }
}
@media print { .tools { display: none; } }
""")

SCRIPT = Html("""
'use strict';
const box = document.getElementById('search');
const buttons = [...document.querySelectorAll('button[data-status]')];
const all = [...document.querySelectorAll('.experiment')];
const shown = document.getElementById('shown');
const none = document.getElementById('none');
function show() {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const wanted = buttons.filter(b => b.getAttribute('aria-pressed') === 'true')
    .map(b => b.dataset.status);
  let count = 0;
  for (const one of all) {
    const text = one.textContent.toLowerCase();
    one.hidden = !(words.every(w => text.includes(w))
      && (!wanted.length || wanted.includes(one.dataset.status)));
    count += one.hidden ? 0 : 1;
  }
  shown.textContent = count === all.length ? '' : `${count} of ${all.length}`;
  none.hidden = count > 0;
}
box.addEventListener('input', show);
for (const b of buttons) b.addEventListener('click', () => {
  const pressed = b.getAttribute('aria-pressed') === 'true';
  b.setAttribute('aria-pressed', String(!pressed));
  show();
});
document.getElementById('open').addEventListener('click', () => {
  const seen = all.filter(one => !one.hidden);
  const open = !seen.every(one => one.open);
  for (const one of seen) one.open = open;
});
show();
""")

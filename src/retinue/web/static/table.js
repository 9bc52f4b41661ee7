// The subagents of a task as a table.
import { cost, duration, html, line, subagentPath, took, useEffect, useMemo, useNow, useRef, useState, useThrottled, whole } from './lib.js';
import { DEEPEST, Lanes } from './lanes.js';
import { Dot, Pill, VirtualList } from './components.js';

const HEIGHT = 38;
const ROWS = 12.5; // half a row shows that there are more
const firstLine = text => line(String(text).trim().split('\n')[0]);
// Remove Markdown marks of headings, emphasis and code.
const withoutMarks = text => text.replace(/^#{1,6}\s+/, '').replace(/(\*\*|__|`|\*)(\S.*?)\1/g, '$2');
const ran = (lane, now) => lane.spans.filter(span => span.kind === 'working').reduce((sum, span) => sum + took(span, now), 0);

function Row({ task, lane, depth, now }) {
  const tokens = lane.input_tokens + lane.output_tokens;
  return html`
    <div class="sub-row" role="row">
      <span role="cell" class="sub-title" title=${line(lane.title)}>${depth ? html`<i aria-hidden="true" style=${{ paddingLeft: `${14 * (Math.min(depth, DEEPEST) - 1)}px` }}>↳</i>` : null}<a href=${subagentPath(task, lane.agentInstance)}>${line(lane.agentInstance)}</a><span>${line(lane.title)}</span>${lane.node ? html`<small class="node-mark" title="the node that runs it">${line(lane.node)}</small>` : null}</span>
      <span role="cell" class="sub-agent" title=${line(lane.agent)}>${line(lane.agent)}</span>
      <span role="cell"><${Pill} status=${lane.status} /></span>
      <span role="cell" class="sub-answer" title=${firstLine(lane.answer || lane.error)}>${withoutMarks(firstLine(lane.answer)) || (lane.error ? html`<span class="bad">${firstLine(lane.error)}</span>` : html`<span class="muted">–</span>`)}</span>
      <span role="cell" class="sub-number">${tokens ? whole(tokens) : html`<span class="muted">–</span>`}</span>
      <span role="cell" class="sub-number">${lane.cost ? cost(lane.cost) : html`<span class="muted" title=${lane.unpriced ? 'no price is known for a model that it asked' : undefined}>${lane.unpriced ? '?' : '–'}</span>`}</span>
      <span role="cell" class="sub-number">${lane.attempt ? duration(ran(lane, now)) : html`<span class="muted">–</span>`}</span>
    </div>`;
}

const Waiting = ({ name, known, closed }) => html`
  <div class="sub-row none" role="row"><span role="cell" class="sub-title">${known ? html`<${Dot} status="pending" /><span>${line(name || 'planned step')}</span>` : html`<i class="blank"></i>`}</span>
    <span role="cell"></span><span role="cell" class="muted">${known ? (closed ? 'not started' : 'not begun') : ''}</span></div>`;

// `sink.current` is set to a function that takes each new event.
export function SubagentTable({ task, overview, sink, lost }) {
  const [, redraw] = useState(0);
  const lanes = useMemo(() => new Lanes(task, 'all', () => redraw(tick => tick + 1), lost), [task]);
  const refresh = useThrottled(() => lanes.refresh(), 400);
  sink.current = event => {
    lanes.touch(event.payload.step_idx);
    if (event.agentInstance) refresh();
  };
  const count = overview.places;
  const before = useRef(count);
  useEffect(() => {
    if (before.current !== count) lanes.dirty.add(-1);
    before.current = count;
    if (lanes.dirty.size) refresh();
  }, [overview]);
  const now = useNow(overview.state === 'open' && overview.unclosed > 0);
  if (!count) return null;
  lanes.arrange(count);
  const row = index => {
    const lane = lanes.at(index);
    return lane ? html`<${Row} task=${task} lane=${lane} depth=${lanes.depth(index)} now=${now} />` : html`<${Waiting} name=${lanes.planned(index)} known=${lanes.loaded(index)} closed=${overview.state !== 'open'} />`;
  };
  return html`
    <section class="card subagents" aria-labelledby="subagents-title">
      <div class="card-head"><h2 id="subagents-title">Subagents <span class="badge">${whole(overview.counts.total)}</span></h2></div>
      <div role="table" aria-labelledby="subagents-title" aria-rowcount=${count + 1}>
        <div class="sub-row sub-head" role="row">${['Subagent', 'Agent', 'Status', 'Answer', 'Tokens', 'Cost', 'Time'].map((name, index) => html`<span key=${name} role="columnheader" class=${index > 3 ? 'sub-number' : ''}>${name}</span>`)}</div>
        <div style=${{ height: `${Math.min(count, ROWS) * HEIGHT}px` }}>
          <${VirtualList} count=${count} height=${HEIGHT} row=${row} role="rowgroup" label="Subagents" onRange=${(first, last) => { lanes.range = [first, last]; }} />
        </div>
      </div>
    </section>`;
}

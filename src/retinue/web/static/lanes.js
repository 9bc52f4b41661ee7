// The time axis: one lane for each subagent, with its spans of time.
import { clock, duration, get, html, line, subagentPath, taskPath, took, useEffect, useMemo, useNow, useRef, useState, useThrottled } from './lib.js';
import { inAddress, keepInAddress } from './navigation.js';
import { Dot, Empty, Icon, tone, VirtualList } from './components.js';

const PAGE = 50;
const KEPT = 40;
const ARRANGED = 200; // the most lanes that are shown as a tree
export const DEEPEST = 6; // level of a tree that is still indented
const HEIGHT = 34;
const LEGEND = [['waiting', 'waiting'], ['working running', 'working'], ['working completed', 'completed'], ['working failed', 'failed'], ['working cancelled', 'cancelled or partial'], ['blocked', 'needs an answer'], ['retrying', 'between attempts'], ['merging', 'joining']];
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];

// Lanes by index; keeps only the recently used pages.
export class Lanes {
  constructor(task, which, changed, lost) {
    this.path = `/api${taskPath(task)}/lanes?which=${which}`;
    this.whole = which === 'all';
    this.changed = changed;
    this.lost = lost; // called if no steward answers
    this.pages = new Map();
    this.range = [0, 0];
    this.dirty = new Set();
  }

  // The lane at this index. In tasks of up to ARRANGED lanes, children are below their parents.
  at(index) {
    return this.row(this.order?.[index] ?? index);
  }

  // The number of ancestors of the lane.
  depth(index) {
    return this.depths?.[index] ?? (this.at(index)?.parent ? 1 : 0);
  }

  // Put children below their parents. This needs all lanes, so larger tasks keep the order of their spawns.
  arrange(count) {
    this.order = null;
    this.depths = null;
    if (!this.whole || count > ARRANGED) return;
    const rows = [...Array(count)].map((_, index) => this.row(index));
    const places = new Map(rows.map((lane, index) => [lane?.agentInstance, index]));
    const below = new Map();
    rows.forEach((lane, index) => {
      const above = lane?.parent ? places.get(lane.parent) ?? -1 : -1;
      // A parent is always older; any other order could be a cycle.
      const known = above < index ? above : -1;
      below.set(known, [...(below.get(known) || []), index]);
    });
    const order = [];
    const depths = [];
    const add = (place, depth) => {
      for (const each of below.get(place) || []) {
        order.push(each);
        depths.push(depth);
        add(each, depth + 1);
      }
    };
    add(-1, 0);
    this.order = order;
    this.depths = depths;
  }

  row(index) {
    const number = Math.floor(index / PAGE);
    let page = this.pages.get(number);
    if (!page) {
      page = { rows: [], planned: {}, loading: false, loaded: false };
      this.pages.set(number, page);
      if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
      this.load(number, page);
    }
    return page.rows[index % PAGE];
  }

  loaded(index) {
    return Boolean(this.pages.get(Math.floor((this.order?.[index] ?? index) / PAGE))?.loaded);
  }

  // The name of the planned step at this index.
  planned(index) {
    const place = this.order?.[index] ?? index;
    return this.pages.get(Math.floor(place / PAGE))?.planned[place];
  }

  async load(number, page) {
    page.loading = true;
    try {
      const first = number * PAGE;
      const { lanes, planned = {} } = await get(`${this.path}&first=${first}&limit=${PAGE}&quiet=1`);
      const rows = [];
      lanes.forEach((lane, place) => {
        const at = this.whole ? lane.step_idx - first : place;
        if (at < PAGE) rows[at] = lane;
      });
      page.rows = rows;
      page.planned = planned;
      page.loaded = true;
    } catch (error) {
      this.dirty.add(number); // the next event or overview fetches it again
      if (error.code === 'no_steward') this.lost();
    }
    page.loading = false;
    this.changed();
  }

  touch(step) {
    if (Number.isInteger(step)) this.dirty.add(this.whole ? Math.floor(step / PAGE) : -1);
  }

  // Fetch visible pages again, and drop the others.
  refresh() {
    const [first, last] = this.order ? [0, this.pages.size] : this.range.map(index => Math.floor(Math.max(0, index) / PAGE));
    const everything = this.dirty.has(-1);
    for (const [number, page] of [...this.pages]) {
      if (!everything && !this.dirty.has(number)) continue;
      if (number < first || number > last) this.pages.delete(number);
      else if (!page.loading) this.load(number, page);
    }
    this.dirty.clear();
    this.changed();
  }

  seen() {
    const rows = [];
    for (let index = this.range[0]; index < this.range[1]; index += 1) {
      const place = this.order?.[index] ?? index;
      const lane = this.pages.get(Math.floor(place / PAGE))?.rows[place % PAGE];
      if (lane) rows.push(lane);
    }
    return rows;
  }
}

function ticks(from, to, most) {
  const total = (to - from) / 1000;
  const step = STEPS.find(each => total / each <= most) || 604800;
  const found = [];
  for (let at = 0; at <= total; at += step) found.push([at, (at / total) * 100]);
  return found.filter(([, place]) => place <= 97);
}
const tickName = at => (at === 0 ? '0' : at < 1 ? `${Math.round(at * 1000)}ms` : at < 60 ? `${Number(at.toFixed(1))}s` : duration(at).replace(/ 00[sm]$/, ''));

const spanTone = span => (span.kind !== 'working' ? span.kind : `working ${span.status ? tone(span.status) : 'running'}`);
const spanTitle = (span, now) => {
  const name = span.kind === 'working' ? `attempt ${span.attempt}, ${span.status || 'running'}` : span.kind;
  const where = span.node ? `, on ${line(span.node)}` : '';
  return `${name.replace(/_/g, ' ')}: ${duration(took(span, now))}, from ${clock(span.start)}${where}`;
};

export function Track({ lane, from, to, now }) {
  const total = Math.max(1, to - from);
  const place = stamp => ((Date.parse(stamp) - from) / total) * 100;
  return html`
    <span class="track">${lane.spans.map((span, index) => {
      const left = Math.max(0, place(span.start));
      const right = Math.min(100, span.end ? place(span.end) : ((now - from) / total) * 100);
      if (right < 0 || left > 100) return null;
      const width = Math.max(0, right - left);
      return html`<i key=${index} class=${`span ${spanTone(span)} ${span.end ? '' : 'open'}`} title=${spanTitle(span, now)}
        style=${{ left: `${left}%`, width: `max(3px, ${width}%)` }}>${span.kind === 'working' && width > 7 ? html`<em>${span.attempt > 1 || lane.attempt > 1 ? `#${span.attempt}` : ''}</em>` : null}</i>`;
    })}${lane.state === 'closed' ? html`<span class=${`end ${tone(lane.status)}`} style=${{ left: `min(${Math.max(0, place(lane.spans[lane.spans.length - 1].end || lane.settled_at || lane.created_at))}%, calc(100% - 18px))` }}><${Icon} status=${lane.status} /></span>` : null}</span>`;
}

const Lane = ({ task, lane, depth, from, to, now }) => {
  const tries = lane.attempt > 1 ? `, ${lane.attempt} attempts` : '';
  return html`
    <a class="lane" href=${subagentPath(task, lane.agentInstance)} aria-label=${`${line(lane.agentInstance)}: ${lane.status}${tries}`} title=${line(lane.title)}>
      <span class="lane-name" style=${{ paddingLeft: `${4 + 14 * Math.min(depth, DEEPEST)}px` }}><${Dot} status=${lane.status} /><span>${line(lane.agentInstance)}</span>${lane.attempt > 1 ? html`<small title="attempts">×${lane.attempt}</small>` : null}${lane.node ? html`<small class="node-mark" title="the node that runs it">${line(lane.node)}</small>` : null}</span>
      <${Track} lane=${lane} from=${from} to=${to} now=${now} />
    </a>`;
};

// Row of a planned step without a subagent, or of a subagent that is being fetched.
const Place = ({ index, name, known, closed }) => (known ? html`
  <div class="lane none"><span class="lane-name"><${Dot} status="pending" /><span>${name ? line(name) : `step ${index}`}</span></span><small>${closed ? 'not started' : 'not begun'}</small></div>`
  : html`<div class="lane none"><span class="lane-name"><i></i></span><span class="track"></span></div>`);

// `sink.current` is set to a function that takes each new event.
export function Timeline({ task, overview, sink, seen, lost }) {
  const [which, setWhich] = useState(() => (['open', 'failed'].includes(inAddress('lanes')) ? inAddress('lanes') : 'all'));
  useEffect(() => keepInAddress({ lanes: which === 'all' ? '' : which }), [which]);
  const [fit, setFit] = useState(false);
  const [, redraw] = useState(0);
  const lanes = useMemo(() => new Lanes(task, which, () => redraw(tick => tick + 1), lost), [task, which]);
  const refresh = useThrottled(() => lanes.refresh(), 250);
  const { counts, unclosed } = overview;
  const badly = counts.failed + counts.cancelled;
  const count = { all: overview.places, open: unclosed, failed: badly }[which];
  sink.current = event => {
    lanes.touch(event.payload.step_idx);
    if (event.agentInstance) refresh();
  };
  const before = useRef(count);
  useEffect(() => {
    if (before.current !== count) {
      before.current = count;
      lanes.dirty.add(-1);
      refresh();
    }
  }, [count]);
  useEffect(() => { if (lanes.dirty.size) refresh(); }, [overview]);
  const moving = overview.state === 'open' && unclosed > 0;
  const now = useNow(moving, 500);
  lanes.arrange(count);
  const visible = lanes.seen();
  useEffect(() => seen(visible.map(lane => lane.agentInstance)), [visible.length, which]);
  let from = Date.parse(overview.created_at);
  let to = moving ? Math.max(now, Date.parse(overview.updated_at)) : Date.parse(overview.updated_at);
  if (fit && visible.length) {
    const marks = visible.flatMap(lane => lane.spans.flatMap(span => [Date.parse(span.start), span.end ? Date.parse(span.end) : now]));
    from = Math.min(...marks);
    to = Math.max(...marks);
  }
  to = from + Math.max(50, (to - from) * 1.02);
  const row = index => {
    const lane = lanes.at(index);
    return lane ? html`<${Lane} task=${task} lane=${lane} depth=${lanes.depth(index)} from=${from} to=${to} now=${now} />` : html`<${Place} index=${index} name=${lanes.planned(index)} known=${lanes.loaded(index)} closed=${overview.state !== 'open'} />`;
  };
  const marks = ticks(from, to, innerWidth < 720 ? 3 : 8);
  return html`
    <section class="card timeline" aria-labelledby="timeline-title">
      <div class="card-head"><h2 id="timeline-title">Timeline</h2>
        <div class="chips" role="group" aria-label="Which subagents">
          ${[['all', 'All', counts.total], ['open', 'Open', unclosed], ['failed', counts.cancelled ? 'Failed or cancelled' : 'Failed', badly]].map(([name, label, number]) => html`
            <button key=${name} class="chip" aria-pressed=${String(which === name)} onClick=${() => setWhich(name)}>${label} <b>${number.toLocaleString('en-US')}</b></button>`)}
        </div>
        <button class="chip" aria-pressed=${String(fit)} onClick=${() => setFit(!fit)}>Fit to visible</button>
      </div>
      ${count ? html`<div class="axis" aria-hidden="true"><span class="lane-name"></span><span class="axis-track">${marks.map(([at, place]) => html`<i key=${at} style=${{ left: `${place}%` }}>${tickName(at)}</i>`)}</span></div>` : null}
      <div class="lanes" style=${{ height: `${Math.max(count ? 1 : 4, Math.min(count, 11.5)) * HEIGHT + 8}px` }}>
        ${count ? html`
          <div class="grid" aria-hidden="true"><span class="lane-name"></span><span class="axis-track">${marks.map(([at, place]) => html`<i key=${at} style=${{ left: `${place}%` }}></i>`)}</span></div>
          <${VirtualList} key=${which} count=${count} height=${HEIGHT} row=${row} role="group" label="Lanes, one for each subagent" onRange=${(first, last) => { lanes.range = [first, last]; }} />`
      : html`<${Empty} title=${which === 'all' ? 'No subagents yet' : which === 'open' ? 'None is open' : 'None failed'}>${which === 'all' ? html`<pre tabindex="0" aria-label="What to type">retinue subagent spawn ${line(task)} -- COMMAND</pre>` : null}<//>`}
      </div>
      <ul class="legend" aria-label="Colours">${LEGEND.map(([name, label]) => html`<li key=${name}><i class=${`span ${name}`} aria-hidden="true"></i>${label}</li>`)}</ul>
    </section>`;
}

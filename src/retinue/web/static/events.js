// List of events, and beside it the details of one.
import { clockMs, Fragment, get, html, line, moment, plain, subagentPath, taskPath, useEffect, useMemo, useNarrow, useRef, useState } from './lib.js';
import { Feed, Search } from './feed.js';
import { inAddress, keepInAddress } from './navigation.js';
import { Dot, Empty, Loading, tone, Trouble, VirtualList } from './components.js';

const KINDS = [
  ['', 'All', []],
  ['life', 'Lifecycle', ['agent.subagent_*', 'task.*', 'run.*']],
  ['attempts', 'Attempts', ['agent.started', 'agent.completed', 'agent.failed', 'agent.blocked', 'agent.cancelled', 'agent.subagent_attempt']],
  ['problems', 'Problems', ['*failed*', '*cancel*', '*blocked*', '*denied*', '*exceeded*', '*lost*', '*cooldown*']],
  ['gates', 'Gates', ['gate.*', 'agent.blocked']],
];

// Return the filter in the address.
export function wantedEvents() {
  const kind = inAddress('kind');
  return { kind: KINDS.some(([name]) => name === kind) ? kind : '', subagent: inAddress('subagent'), text: inAddress('text') };
}

const TONES = [
  [/fail|exceeded|lost|denied/, 'failed'],
  [/cancel|stop/, 'cancelled'],
  [/block|gate|cooldown/, 'blocked'],
  [/completed|closed|merged|accepted|copied|ended/, 'completed'],
  [/started|attempt|waiting/, 'running'],
];
function toneOf({ type, summary, outcome, payload }) {
  if (/^run\.(plan_)?ended$/.test(type)) return outcome ?? payload?.outcome ?? 'pending';
  if (type === 'task.closed') return 'pending'; // the event of its run's end has the outcome
  if (type === 'agent.subagent_attempt') return tone((/: (\w+)/.exec(summary ?? payload.summary) || [])[1]);
  if (type === 'agent.subagent_closed' && /: failed/.test(summary ?? payload.summary)) return 'failed';
  return (TONES.find(([pattern]) => pattern.test(type)) || [0, 'pending'])[1];
}
const short = type => type.replace(/^agent\.(subagent_(?=waiting))?/, '').replace(/[._]/g, ' ');

const Row = ({ event, chosen, choose }) => html`
  <div class=${`event ${chosen ? 'chosen' : ''}`} role="option" id=${`event-${event.seq}`} aria-selected=${String(chosen)} onClick=${() => choose(event.seq)}>
    <span class="event-seq">${event.seq}</span>
    <time class="event-time" dateTime=${event.ts} title=${moment(event.ts)}>${clockMs(event.ts)}</time>
    <${Dot} status=${toneOf(event)} />
    <span class="event-type">${line(short(event.type))}</span>
    <span class="event-who">${event.agentInstance ? line(event.agentInstance) : ''}</span>
    <span class="event-summary">${line(event.summary)}</span>
  </div>`;

export function Json({ value }) {
  const lines = plain(JSON.stringify(value, null, 2)).split('\n');
  return html`<pre class="json" tabindex="0" aria-label="All that was recorded">${lines.map((text, index) => {
    const found = /^(\s*)("(?:[^"\\]|\\.)*"): (.*)$/.exec(text);
    return html`<${Fragment} key=${index}>${found ? html`${found[1]}<b>${found[2]}</b>: ${found[3]}` : text}${'\n'}<//>`;
  })}</pre>`;
}

function Inspector({ task, seq, close }) {
  const [state, set] = useState({ seq: null, event: null, error: null });
  useEffect(() => {
    if (seq === null) return undefined;
    const stop = new AbortController();
    get(`/api${taskPath(task)}/events/${seq}`, stop.signal).then(
      event => set({ seq, event, error: null }),
      error => { if (error.name !== 'AbortError') set({ seq, event: null, error }); },
    );
    return () => stop.abort();
  }, [seq]);
  if (seq === null) return html`<div class="inspector none"><p class="muted">Choose an event to see all of it.</p></div>`;
  const { event, error } = state;
  return html`
    <section class="inspector" aria-label=${`Event ${seq}`}>
      <div class="inspector-head"><h3>Event ${seq}</h3><button class="button quiet" onClick=${close} aria-label="Close event">✕</button></div>
      ${error ? html`<${Trouble} error=${error} />` : !event ? html`<${Loading} lines=${4} />` : html`
        <dl class="facts">
          <dt>What</dt><dd><${Dot} status=${toneOf(event)} /> ${line(event.type)}</dd>
          <dt>When</dt><dd><time dateTime=${event.ts}>${moment(event.ts)}</time></dd>
          <dt>By</dt><dd>${line(event.by)}</dd>
          ${event.agentInstance ? html`<dt>Subagent</dt><dd><a href=${subagentPath(event.taskId, event.agentInstance)}>${line(event.agentInstance)}</a>${event.attempt ? `, attempt ${event.attempt}` : ''}</dd>` : null}
        </dl>
        <p class="said">${plain(event.payload.summary)}</p>
        <${Json} value=${event} />`}
    </section>`;
}

function Filters({ wanted, set, subagents }) {
  return html`
    <div class="filters" role="search" aria-label="Filter events">
      <div class="chips" role="group" aria-label="Kind">
        ${KINDS.map(([name, label]) => html`<button key=${name} class="chip" aria-pressed=${String(wanted.kind === name)} onClick=${() => set({ ...wanted, kind: name })}>${label}</button>`)}
      </div>
      <label class="hidden" for="event-subagent">Subagent</label>
      <input id="event-subagent" type="search" list="event-subagents" placeholder="Subagent" value=${wanted.subagent} onInput=${event => set({ ...wanted, subagent: event.target.value.trim() })} autocomplete="off" spellcheck="false" />
      <datalist id="event-subagents">${subagents.map(id => html`<option key=${id} value=${id}></option>`)}</datalist>
      <label class="hidden" for="event-text">Text</label>
      <input id="event-text" type="search" placeholder="Text in summary" value=${wanted.text} onInput=${event => set({ ...wanted, text: event.target.value })} autocomplete="off" />
    </div>`;
}

// `sink.current` is set to a function that takes each new event.
export function Events({ task, overview, lost, lastSeq, sink, wanted, setWanted, subagents }) {
  const [, redraw] = useState(0);
  const [chosen, choose] = useState(() => Number(inAddress('event')) || null);
  useEffect(() => keepInAddress({ ...wanted, event: chosen }), [wanted, chosen]);
  const narrow = useNarrow();
  const pending = useRef(0);
  const changed = () => {
    if (!pending.current) pending.current = requestAnimationFrame(() => { pending.current = 0; redraw(tick => tick + 1); });
  };
  const all = useMemo(() => new Feed(task, lastSeq, changed), [task]);
  const filtered = Boolean(wanted.kind || wanted.subagent || wanted.text);
  const key = JSON.stringify(wanted);
  const search = useMemo(() => filtered && new Search(task, {
    kinds: KINDS.find(([name]) => name === wanted.kind)[2], subagent: wanted.subagent, text: wanted.text,
  }, changed, lost), [task, key]);
  useEffect(() => { if (search) search.again(); }, [overview]);
  const feed = search || all;
  sink.current = event => {
    all.add(event);
    if (search) search.add(event);
  };
  const rowHeight = narrow ? 54 : 32;
  const keyed = event => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, j: 1, k: -1 }[event.key];
    if (!step || !feed.count) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(feed.count - 1, (chosen === null ? -1 : feed.place(chosen)) + step));
    const next = feed.at(index);
    if (next) choose(next.seq);
    const box = event.currentTarget;
    const top = index * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
  };
  // Escape closes the details and returns the focus to the list.
  const list = useRef(null);
  const left = event => {
    if (event.key !== 'Escape' || chosen === null) return;
    choose(null);
    list.current.querySelector('.virtual').focus();
  };
  const row = index => {
    const event = feed.at(index);
    return event ? html`<${Row} event=${event} chosen=${event.seq === chosen} choose=${choose} />` : html`<div class="event waiting" role="option" aria-selected="false" aria-label="Loading"><i></i></div>`;
  };
  const extra = { onKeyDown: keyed, ...(chosen !== null && { 'aria-activedescendant': `event-${chosen}` }) };
  const empty = feed.count === 0;
  return html`
    <section class="card events" aria-labelledby="events-title">
      <div class="card-head"><h2 id="events-title">Events <span class="badge">${filtered ? `${feed.count}${search.over ? '' : '+'}` : feed.count.toLocaleString('en-US')}</span></h2>
        <${Filters} wanted=${wanted} set=${setWanted} subagents=${subagents} /></div>
      <div class="events-body" onKeyDown=${left}>
        <div class="events-list" ref=${list}>
          <${VirtualList} key=${key} count=${feed.count} height=${rowHeight} row=${row} keyOf=${index => feed.seq(index)} role="listbox" label="Events, newest first"
            at=${filtered || chosen === null ? 0 : all.place(chosen)} anchored=${true} extra=${extra} onRange=${(_, last) => feed.more(last)} />
          ${empty ? html`<${Empty} title=${filtered ? (search.over ? 'No event matches' : search.failed ? 'Could not be searched' : 'Searching…') : 'Nothing has happened yet'}>${filtered && search.over ? html`<button class="button" onClick=${() => setWanted({ kind: '', subagent: '', text: '' })}>Show all events</button>` : null}<//>` : null}
        </div>
        <${Inspector} task=${task} seq=${chosen} close=${() => choose(null)} />
      </div>
    </section>`;
}

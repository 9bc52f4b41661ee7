// Components that several pages use.
import { html, line, useEffect, useLayoutEffect, useRef, useState } from './lib.js';

const SHAPES = {
  completed: 'M4 8.5 7 11.5 12.5 5',
  failed: 'M5 5l6 6M11 5l-6 6',
  cancelled: 'M4.5 8h7',
  blocked: 'M8 4.5v4.5M8 11.4v.2',
  waiting_for_merge: 'M5 4v8M11 4c0 4-6 2-6 6',
  pending: 'M4 8h.01M8 8h.01M12 8h.01',
  running: 'M6 5l5 3-5 3z',
};
const WORDS = {
  completed_but_timeout: 'completed',
  partial: 'cancelled',
  timeout: 'failed',
  error: 'failed',
  succeeded: 'completed',
  closed: 'completed',
  open: 'running',
};
export const tone = status => (status in SHAPES ? status : WORDS[status] || 'pending');

export const Icon = ({ status }) => html`
  <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[tone(status)]} /></svg>`;

export const Pill = ({ status, label }) => html`
  <span class=${`pill ${tone(status)}`}><${Icon} status=${status} />${line(label || String(status).replace(/_/g, ' '))}</span>`;

export const Dot = ({ status }) => html`<span class=${`dot ${tone(status)}`} aria-hidden="true"></span>`;

export const Stat = ({ name, value, more, title }) => html`
  <div class="stat"><dt>${name}</dt><dd title=${title}>${value}${more ? html` <small>${more}</small>` : null}</dd></div>`;

export const Empty = ({ title, children }) => html`
  <div class="empty"><p class="empty-title">${title}</p>${children}</div>`;

export const Trouble = ({ error, retry }) => html`
  <div class="trouble" role="alert">
    <div><strong>${line(error.message)}</strong>${error.hint ? html`<p>${line(error.hint)}</p>` : null}</div>
    ${retry ? html`<button class="button" onClick=${retry}>Try again</button>` : null}
  </div>`;

// A page whose content could not be loaded.
export const Missing = ({ name, error, retry }) => html`
  <div class="title-row"><h1>${line(name)}</h1></div><${Trouble} error=${error} retry=${retry} />`;

export const Loading = ({ lines = 3 }) => html`
  <div class="loading" role="status" aria-label="Loading">${Array.from({ length: lines }, (_, index) => html`<i key=${index}></i>`)}</div>`;

// Return the status and the label of a task: by its open subagents, else by its outcome.
export function describeStatus(task) {
  const { blocked, running, pending, waiting_for_merge: merging } = task.counts;
  if (task.state === 'open' && blocked) return ['blocked', 'needs you'];
  if (task.state === 'open' && running) return ['running', 'running'];
  if (task.state === 'open' && pending) return ['pending', 'pending'];
  if (task.state === 'open' && merging) return ['waiting_for_merge', 'waiting for merge'];
  return task.outcome === 'running' ? ['pending', 'idle'] : [task.outcome, task.outcome];
}

// The number of planned steps without a subagent: not started yet or, in a closed task, never started.
export const countUnstarted = task => Math.max(0, task.places - task.counts.total);

// Progress bar of a task: a part for each status, and room for steps that have not started.
export function Progress({ task }) {
  const { counts } = task;
  const parts = [
    ['completed', counts.completed],
    ['failed', counts.failed],
    ['cancelled', counts.cancelled],
    ['running', counts.running],
    ['blocked', counts.blocked],
    ['waiting_for_merge', counts.waiting_for_merge],
  ].filter(([, number]) => number > 0);
  const total = Math.max(1, counts.total + countUnstarted(task));
  const told = [...parts, ['not begun', countUnstarted(task)]].filter(([, number]) => number);
  const said = told.map(([word, number]) => `${number} ${word.replace(/_/g, ' ')}`).join(', ') || 'nothing begun';
  return html`
    <div class="progress" role="img" aria-label=${`${counts.total} subagents: ${said}`} title=${said}>
      ${parts.map(([word, number]) => html`<i key=${word} class=${word} style=${{ width: `${(number / total) * 100}%` }}></i>`)}
    </div>`;
}

// Tabs, with arrow keys.
export function Tabs({ label, tabs, chosen, choose }) {
  const list = useRef(null);
  // On a narrow screen the tabs scroll: the chosen one is in sight.
  useLayoutEffect(() => {
    const tab = list.current.querySelector('[aria-selected="true"]');
    if (!tab) return;
    const row = list.current;
    if (tab.offsetLeft < row.scrollLeft || tab.offsetLeft + tab.offsetWidth > row.scrollLeft + row.clientWidth) {
      row.scrollLeft = tab.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
    }
  }, [chosen]);
  const move = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const names = tabs.map(([name]) => name);
    const next = names[(names.indexOf(chosen) + step + names.length) % names.length];
    choose(next);
    list.current.querySelector(`[data-name="${next}"]`).focus();
  };
  return html`
    <div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
      ${tabs.map(([name, shown, badge]) => html`
        <button key=${name} role="tab" data-name=${name} aria-selected=${String(name === chosen)}
          tabindex=${name === chosen ? 0 : -1} onClick=${() => choose(name)}>
          ${shown}${badge ? html`<span class="badge">${badge}</span>` : null}
        </button>`)}
    </div>`;
}

// State of the page's event stream.
export function Live({ state }) {
  const words = { live: 'live', connecting: 'connecting', lost: 'reconnecting', stopped: 'no steward runs: reload to start one', ended: 'closed', out: 'signed out: open a new link of retinue ui' };
  return html`<span class=${`link ${state}`} role="status"><i aria-hidden="true"></i>${words[state]}</span>`;
}

// A list that renders only its visible rows, with row `at` in view at first. An anchored list grows at its top, and
// keeps the rows that are read or under the pointer in place.
export function VirtualList({ count, height, row, keyOf, at = 0, onRange, label, role, anchored, extra = {} }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, tall: 600 });
  const [fresh, setFresh] = useState(0);
  const known = useRef(count);
  const read = () => {
    const element = box.current;
    if (element) setView(old => (old.top === element.scrollTop && old.tall === element.clientHeight ? old
      : { top: element.scrollTop, tall: element.clientHeight }));
  };
  useEffect(() => {
    const watch = new ResizeObserver(read);
    watch.observe(box.current);
    if ((at + 1) * height > box.current.clientHeight) box.current.scrollTop = (at - 2) * height;
    read();
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    const added = count - known.current;
    known.current = count;
    const element = box.current;
    if (!anchored || added <= 0) return;
    if (element.scrollTop > 2 || element.matches(':hover, :focus')) {
      element.scrollTop += added * height;
      if (element.scrollTop > 2) setFresh(old => old + added);
      read();
    }
  }, [count]);
  const scrolled = () => {
    if (box.current.scrollTop <= 2) setFresh(0);
    read();
  };
  const first = Math.max(0, Math.floor(view.top / height) - 8);
  const last = Math.min(count, Math.ceil((view.top + view.tall) / height) + 8);
  useEffect(() => { if (onRange) onRange(first, last); }, [first, last]);
  const rows = [];
  for (let index = first; index < last; index += 1) {
    rows.push(html`<div key=${keyOf ? keyOf(index) : index} class="virtual-row" role="presentation"
      style=${{ top: `${index * height}px`, height: `${height}px` }}>${row(index)}</div>`);
  }
  return html`
    <div class="virtual-frame">
      ${fresh ? html`<button class="fresh" onClick=${() => { box.current.scrollTop = 0; }}>↑ ${fresh} new</button>` : null}
      <div class="virtual" ref=${box} onScroll=${scrolled} role=${role} aria-label=${label} tabindex="0" ...${extra}>
        <div class="virtual-all" role="presentation" style=${{ height: `${count * height}px` }}>${rows}</div>
      </div>
    </div>`;
}

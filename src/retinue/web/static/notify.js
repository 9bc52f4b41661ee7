// Browser notifications, if the user turned them on.
import { API, BASE, get, html, line, subagentPath, taskPath, useEffect, useState } from './lib.js';
import { follow } from './event_stream.js';
import { moveTo } from './navigation.js';

const KEY = 'retinue.notify';
const LOCK = `${KEY}${BASE}`;
const NEWEST = 50; // newest tasks that are watched
const SETTLE_MS = 500;
const chosen = () => {
  try {
    return localStorage.getItem(KEY) === 'yes';
  } catch {
    return false;
  }
};
const allowed = () => 'Notification' in globalThis && Notification.permission === 'granted' && chosen();

// Show a notification unless the page has the focus.
function notify(title, body, address) {
  if (!allowed() || (!document.hidden && document.hasFocus())) return;
  const shown = new Notification(title, { body: body.slice(0, 200), icon: '/static/icon.svg', tag: address });
  shown.onclick = () => {
    globalThis.focus();
    shown.close();
    moveTo(address);
  };
}

const works = task => task.state === 'open' && task.unclosed > 0;
const came = ({ counts }) => ['completed', 'failed', 'cancelled'].filter(word => counts[word]).map(word => `${counts[word]} ${word}`).join(', ');

// Return [title, text, address] of each new question and each ended task since the last look at the root.
function findNews(before, now) {
  const asked = new Set(before.gates.map(gate => `${gate.task_id}/${gate.gate_id}`));
  const worked = new Set(before.tasks.filter(works).map(task => task.task_id));
  const known = new Set(before.tasks.map(task => task.task_id));
  const questions = now.gates.filter(gate => !asked.has(`${gate.task_id}/${gate.gate_id}`)).map(gate => [
    `${line(gate.agentInstance)} ${gate.review ? 'waits for approval' : 'asks'}`, line(gate.questions.join(' ')), subagentPath(gate.task_id, gate.agentInstance),
  ]);
  const ends = now.tasks.filter(task => !works(task) && task.counts.total && (worked.has(task.task_id) || !known.has(task.task_id))).map(task => [
    `${line(task.title)} ended`, came(task), taskPath(task.task_id),
  ]);
  return [...questions, ...ends];
}

// Watch the root until `stop` is aborted, also while the page is hidden.
function watch(stop) {
  let before = null;
  let timer = 0;
  const look = async () => {
    timer = 0;
    try {
      const [gates, tasks] = await Promise.all([get(`${API}/gates?quiet=1`, stop), get(`${API}/tasks?limit=${NEWEST}&quiet=1`, stop)]);
      for (const news of before ? findNews(before, { gates, tasks }) : []) notify(...news);
      before = { gates, tasks };
    } catch { /* the next change asks again */ }
  };
  const soon = () => { timer = timer || setTimeout(look, SETTLE_MS); };
  const end = follow(`${API}/changes`, { since: null, take: soon, say: state => { if (state === 'live') soon(); }, hidden: true });
  return new Promise(done => {
    stop.addEventListener('abort', () => {
      clearTimeout(timer);
      end();
      done();
    });
  });
}

// A lock lets one page of the browser watch the root; when it is closed, another takes over.
export function useNotifications() {
  const [on, set] = useState(allowed);
  useEffect(() => {
    const changed = () => set(allowed());
    addEventListener('storage', changed);
    addEventListener(KEY, changed);
    return () => {
      removeEventListener('storage', changed);
      removeEventListener(KEY, changed);
    };
  }, []);
  useEffect(() => {
    if (!on || !navigator.locks) return undefined;
    const stop = new AbortController();
    navigator.locks.request(LOCK, { signal: stop.signal }, () => watch(stop.signal)).catch(() => {});
    return () => stop.abort();
  }, [on]);
}

export function Notify() {
  const [on, set] = useState(allowed);
  if (!('Notification' in globalThis)) return null;
  const change = async () => {
    const wanted = !on && (await Notification.requestPermission()) === 'granted';
    try {
      localStorage.setItem(KEY, wanted ? 'yes' : 'no');
    } catch { /* without storage there are no notifications */ }
    set(wanted && allowed());
    dispatchEvent(new Event(KEY));
  };
  return html`<button class="chip notify" aria-pressed=${String(on)} title="Notify me when a subagent asks something or a task ends, also while this page is in the background" onClick=${change}>Notify me</button>`;
}

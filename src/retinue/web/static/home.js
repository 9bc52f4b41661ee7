// The first page: open gates, running and recent tasks, nodes, other roots.
import { ago, API, BASE, cost, duration, html, line, moment, seconds, setTitle, taskPath, useDocument, useEffect, useNow, useRef, useState, useThrottled, whole } from './lib.js';
import { ActionDialog, Toast } from './actions.js';
import { Gates } from './gates.js';
import { useFollow } from './event_stream.js';
import { inAddress, keepInAddress } from './navigation.js';
import { Notify } from './notify.js';
import { NodesPanel } from './nodes.js';
import { OtherRoots } from './roots.js';
import { StartDialog } from './start.js';
import { Empty, Live, Loading, Pill, Progress, describeStatus, Trouble, countUnstarted } from './components.js';

const PAGE = 50;
const FILTERS = [['', 'All'], ['open', 'Open'], ['succeeded', 'Succeeded'], ['failed', 'Failed']];

function Row({ task, now }) {
  const [status, label] = describeStatus(task);
  const sums = task.metrics.totals;
  const { counts } = task;
  const done = counts.completed + counts.failed + counts.cancelled;
  const moving = task.state === 'open' && task.unclosed > 0;
  const took = moving ? (now - Date.parse(task.created_at)) / 1000 : seconds(task.created_at, task.updated_at);
  return html`
    <li class="task-row">
      <a href=${taskPath(task.task_id)} class="task-link">
        <span class="task-name"><strong>${line(task.title)}</strong><code>${line(task.task_id)}</code></span>
        <span class="task-status"><${Pill} status=${status} label=${label} /></span>
        <span class="task-progress"><${Progress} task=${task} /><small>${counts.total + countUnstarted(task) ? `${whole(done)} of ${whole(counts.total + countUnstarted(task))}` : 'no subagents yet'}${counts.failed ? html`, <b class="bad">${whole(counts.failed)} failed</b>` : null}</small></span>
        <span class="task-number" title="Tokens, in and out">${whole(sums.input_tokens + sums.output_tokens)}<small> tokens</small></span>
        <span class="task-number" title=${sums.unpriced_models ? `no price known for ${sums.unpriced_models.map(line).join(', ')}` : `$${sums.estimated_cost}`}>${cost(sums.estimated_cost)}${sums.unpriced_models ? html`<small> + ?</small>` : null}</span>
        <span class="task-when" title=${moment(task.created_at)}>${ago(task.created_at, now)}<small>${duration(took)}</small></span>
      </a>
    </li>`;
}

const Section = ({ name, title, tasks, now }) => (tasks.length ? html`
  <section class="home-section" aria-labelledby=${`${name}-title`}>
    <h2 id=${`${name}-title`}>${title} <span class="badge">${whole(tasks.length)}</span></h2>
    <ul class="task-list card">${tasks.map(task => html`<${Row} key=${task.task_id} task=${task} now=${now} />`)}</ul>
  </section>` : null);

const matches = (task, filter) => !filter || (filter === 'open' ? task.state === 'open' : task.outcome === filter);

export function Home() {
  const [limit, setLimit] = useState(PAGE);
  const [text, setText] = useState(() => inAddress('text'));
  const [asked, setAsked] = useState(text);
  const [starting, setStarting] = useState(() => inAddress('start'));
  useEffect(() => keepInAddress({ start: '' }), []);
  const [filter, setFilter] = useState(() => inAddress('state'));
  useEffect(() => keepInAddress({ text: asked, state: filter }), [asked, filter]);
  const typed = useThrottled(() => setAsked(text), 250);
  useEffect(() => { if (text !== asked) typed(); }, [text]);
  const found = useDocument(`${API}/tasks?limit=${limit}${asked ? `&text=${encodeURIComponent(asked)}` : ''}`);
  const waiting = useDocument(`${API}/gates`);
  const { error, reload } = found;
  // During a search, show the previous tasks.
  const last = useRef(null);
  if (found.data) last.current = found.data;
  const data = found.data || last.current;
  const gates = waiting.data || [];
  const again = useThrottled(() => { found.refresh(); waiting.refresh(); }, 400);
  const state = useFollow(`${API}/changes`, null, again);
  useEffect(() => { if (state === 'live') again(); }, [state]);
  const now = useNow(true, 10000);
  const shown = (data || []).filter(task => matches(task, filter));
  const active = shown.filter(task => task.state === 'open' && task.unclosed > 0);
  const others = shown.filter(task => !active.includes(task));
  const running = (data || []).reduce((sum, task) => sum + task.counts.running, 0);
  useEffect(() => setTitle('Tasks', gates.length, running), [gates.length, running]);
  const [dialog, setDialog] = useState(null);
  const [toast, setToast] = useState(null);
  const done = said => {
    setDialog(null);
    if (said) setToast(said);
    again();
  };
  const searching = asked || filter;
  // What stands below the tasks is shown after them: else it moves away from under the pointer.
  const settled = (data || error) && (waiting.data || waiting.error);
  return html`
    <div class="title-row"><h1>Tasks</h1><${Live} state=${state} />
      <div class="home-tools">
        <input type="search" aria-label="Search titles and ids" placeholder="Search titles and ids" value=${text} onInput=${event => setText(event.target.value)} />
        <div class="chips" role="group" aria-label="Which tasks">${FILTERS.map(([name, label]) => html`<button key=${name} class="chip" aria-pressed=${String(filter === name)} onClick=${() => setFilter(name)}>${label}</button>`)}</div>
        <button class="button primary" onClick=${() => setStarting('prompt')}>Start a run</button>
        <a class="button" href=${`${BASE}/costs`}>Costs</a>
        <${Notify} />
      </div>
    </div>
    ${error ? html`<${Trouble} error=${error} retry=${reload} />` : null}
    ${searching ? null : html`<${Gates} title="Needs you" gates=${gates} act=${setDialog} />`}
    ${!data && !error ? html`<${Loading} lines=${5} />` : null}
    ${data && !shown.length ? searching ? html`<${Empty} title="No task matches" />` : html`
      <${Empty} title="No tasks yet">
        <p><b>Start a run</b> above, or create a task at the shell; it appears here by itself.</p>
        <pre tabindex="0" aria-label="What to type">retinue task create --title "Greetings"${'\n'}retinue subagent spawn TASK --id quick -- sh -c 'echo hello'</pre>
      <//>` : null}
    <${Section} name="running" title="Running" tasks=${active} now=${now} />
    <${Section} name="recent" title="Recent" tasks=${others} now=${now} />
    ${settled ? html`<${NodesPanel} /><${OtherRoots} />` : null}
    <${ActionDialog} open=${dialog} done=${done} /><${Toast} said=${toast} gone=${() => setToast(null)} />
    <${StartDialog} kind=${starting} choose=${setStarting} />
    ${data && data.length === limit ? html`<p class="more"><button class="button" onClick=${() => setLimit(limit + PAGE)}>Show older tasks</button></p>` : null}`;
}

// Page of one task: gates, plan, subagents, time axis, events.
import { BASE, cost, duration, get, html, line, plain, save, seconds, setTitle, taskPath, useDocument, useEffect, useNow, useRef, useState, useThrottled, whole } from './lib.js';
import { useFollow } from './event_stream.js';
import { ActionDialog, Toast } from './actions.js';
import { Events, wantedEvents } from './events.js';
import { Timeline } from './lanes.js';
import { Gates } from './gates.js';
import { Answer } from './markdown.js';
import { PlanGraphs } from './plan.js';
import { Live, Loading, Missing, Pill, Progress, describeStatus, Stat, Trouble, countUnstarted } from './components.js';
import { StartDialog } from './start.js';
import { SubagentTable } from './table.js';

const LANES = 200;
const EVENTS = 1000;
const SETTLED = 2500;
const SLOWLY = 5000; // costs change without events

// Save everything that the page shows of a task as one JSON document.
async function exportTask(task) {
  const path = `/api${taskPath(task)}`;
  const [shown, overview, plans] = await Promise.all([get(path), get(`${path}/overview`), get(`${path}/plans`)]);
  const subagents = [];
  for (let first = 0; first < overview.places; first += LANES) {
    subagents.push(...(await get(`${path}/lanes?first=${first}&limit=${LANES}`)).lanes.filter(lane => lane.step_idx < first + LANES));
  }
  const events = [];
  for (let page = null; !page || page.events.length;) {
    page = await get(`${path}/page?after=${events.length ? events[events.length - 1].seq : 0}&limit=${EVENTS}`);
    events.push(...page.events);
    if (page.events.length < EVENTS) break;
  }
  save(`${task}.json`, 'application/json', `${JSON.stringify({ task: { ...overview, ...shown }, plans, subagents, events }, null, 2)}\n`);
}

function Stats({ overview }) {
  const { counts, metrics } = overview;
  const moving = overview.state === 'open' && overview.unclosed > 0;
  const now = useNow(moving);
  const end = moving ? new Date(now).toISOString() : overview.updated_at;
  const sums = metrics.totals;
  const done = counts.completed + counts.failed + counts.cancelled;
  const some = parts => parts.filter(([, number]) => number).map(([word, number]) => `${whole(number)} ${word}`).join(', ');
  return html`
    <dl class="stats">
      <${Stat} name="Done" value=${`${whole(done)} / ${whole(counts.total + countUnstarted(overview))}`} more=${some([['failed', counts.failed], ['cancelled', counts.cancelled]])} />
      <${Stat} name="At work" value=${whole(counts.running)} more=${some([['waiting', counts.pending], [overview.state === 'open' ? 'not begun' : 'not started', countUnstarted(overview)]])} />
      <${Stat} name="Elapsed" value=${duration(seconds(overview.created_at, end))} />
      <${Stat} name="Tokens in / out" value=${html`<span data-field="tokens">${whole(sums.input_tokens)} / ${whole(sums.output_tokens)}</span>`} />
      <${Stat} name="Cost" value=${html`<a href=${`${taskPath(overview.task_id)}/costs`} data-field="cost">${cost(sums.estimated_cost)}</a>`} title=${`$${sums.estimated_cost}`} more=${sums.unpriced_models ? `no price known for ${sums.unpriced_models.join(', ')}` : ''} />
    </dl>`;
}

function NotStarted({ steps }) {
  const never = Object.entries(steps);
  if (!never.length) return null;
  return html`
    <section class="card never" aria-labelledby="never-title">
      <h2 id="never-title">Not started <span class="badge">${never.length}</span></h2>
      <ul>${never.map(([name, why]) => html`<li key=${name}><code>${line(name)}</code> ${plain(why)}</li>`)}</ul>
    </section>`;
}

export function TaskPage({ task }) {
  const { data, error, reload, refresh } = useDocument(`/api${taskPath(task)}/overview`);
  const plans = useDocument(`/api${taskPath(task)}/plans`);
  const [dialog, setDialog] = useState(null);
  const [toast, setToast] = useState(null);
  const [adding, setAdding] = useState('');
  const [wanted, setWanted] = useState(wantedEvents);
  const [names, setNames] = useState([]);
  const eventSink = useRef(() => {});
  const laneSink = useRef(() => {});
  const tableSink = useRef(() => {});
  const soon = useThrottled(() => { refresh(); plans.refresh(); }, 400);
  const settled = useRef(0);
  // Refresh once more after a pause, because the sums of a large task may lag behind its events.
  const again = () => {
    soon();
    clearTimeout(settled.current);
    settled.current = setTimeout(soon, SETTLED);
  };
  useEffect(() => () => clearTimeout(settled.current), []);
  const first = useRef(null);
  if (data && first.current === null) first.current = data.last_seq;
  const state = useFollow(first.current === null ? null : `/api${taskPath(task)}/events`, first.current, event => {
    eventSink.current(event);
    laneSink.current(event);
    tableSink.current(event);
    again();
  });
  useEffect(() => setTitle(data ? data.title : task, data?.gates.length, data?.counts.running), [data]);
  useEffect(() => { if (state === 'live') again(); }, [state]);
  const spends = data && data.counts.running > 0;
  useEffect(() => {
    if (!spends) return undefined;
    const timer = setInterval(() => { if (!document.hidden) again(); }, SLOWLY);
    return () => clearInterval(timer);
  }, [spends]);
  const act = (kind, name, path, asked = []) => setDialog({ kind, name, task, path, asked });
  const done = said => {
    setDialog(null);
    if (said?.moved) return; // another page is shown now, and this task may be deleted
    if (said) setToast(said);
    again();
  };
  if (!data) return error ? html`<${Crumbs} task=${task} /><${Missing} name=${task} error=${error} retry=${reload} />` : html`<${Crumbs} task=${task} /><${Loading} lines=${6} />`;
  const { counts } = data;
  const working = counts.pending + counts.running + counts.blocked;
  const [status, label] = describeStatus(data);
  const plan = (plans.data || []).some(each => !each.parent);
  const badly = counts.failed + counts.cancelled + Object.keys(data.not_started).length;
  return html`
    <${Crumbs} task=${task} />
    <div class="title-row">
      <div class="title"><h1>${line(data.title)}</h1><${Pill} status=${status} label=${label} /><${Live} state=${state} /></div>
      <div class="buttons">
        <button class="button" onClick=${() => exportTask(task).catch(problem => setToast({ text: `Not exported: ${problem.message}` }))}>Export JSON</button>
        ${data.state === 'open' ? null : html`
          ${badly && plan ? html`<button class="button" onClick=${() => act('retry', data.title, `/api${taskPath(task)}/retry`)}>Retry</button>` : null}
          ${data.end.branch && !data.end.applied ? html`<button class="button" title=${line(data.end.branch)} onClick=${() => act('apply', data.title, `/api${taskPath(task)}/apply`)}>Apply branch</button>` : null}
          <button class="button danger-quiet" onClick=${() => act('deleteTask', data.title, `/api${taskPath(task)}/delete`)}>Delete</button>`}
        ${data.state === 'open' ? html`
        <button class="button" onClick=${() => setAdding('subagent')}>Add a subagent</button>
        ${working ? html`<button class="button danger-quiet" onClick=${() => act('cancelTask', data.title, `/api${taskPath(task)}/cancel`)}>Cancel all</button>` : null}
        <button class="button" disabled=${working > 0} title=${working ? 'Its subagents have to end first' : undefined} onClick=${() => act('closeTask', data.title, `/api${taskPath(task)}/close`)}>Close task</button>` : null}
      </div>
    </div>
    ${data.description && data.description !== data.title ? html`<p class="about">${plain(data.description)}</p>` : null}
    ${error ? html`<${Trouble} error=${error} retry=${reload} />` : null}
    ${data.problem ? html`<${Trouble} error=${{ message: data.problem }} />` : null}
    <${Stats} overview=${data} /><${Progress} task=${data} />
    <${Gates} task=${task} gates=${data.gates} act=${setDialog} />
    <${NotStarted} steps=${data.not_started} />
    ${data.answer != null ? html`<section class="card run-answer" aria-labelledby="answer-title"><h2 id="answer-title">Answer</h2>${data.answer_by === 'rule' ? html`<p class="muted">Put together from the parts by a rule: the embedded model cannot judge them.</p>` : null}<${Answer} text=${data.answer} label="Answer of the run" /></section>` : null}
    <${PlanGraphs} task=${task} plans=${plans.data || []} closed=${data.state !== 'open'} />
    <${SubagentTable} task=${task} overview=${data} sink=${tableSink} lost=${soon} />
    <${Timeline} task=${task} overview=${data} sink=${laneSink} seen=${setNames} lost=${soon} />
    <${Events} task=${task} overview=${data} lost=${soon} lastSeq=${first.current} sink=${eventSink} wanted=${wanted} setWanted=${setWanted} subagents=${names} />
    <${StartDialog} kind=${adding} choose=${setAdding} task=${task} />
    <${ActionDialog} open=${dialog} done=${done} /><${Toast} said=${toast} gone=${() => setToast(null)} />`;
}

export const Crumbs = ({ task, id, place }) => html`
  <nav class="crumbs" aria-label="Where you are"><a href=${`${BASE}/`}>Tasks</a><span aria-hidden="true">/</span>${id || place
    ? html`<a href=${taskPath(task)}><code>${line(task)}</code></a><span aria-hidden="true">/</span>${id ? html`<code aria-current="page">${line(id)}</code>` : html`<span aria-current="page">${place}</span>`}`
    : html`<code aria-current="page">${line(task)}</code>`}</nav>`;

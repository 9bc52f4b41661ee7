// All tasks: where each stands, how far it is, what it cost.
import { ago, cost, duration, html, line, moment, seconds, taskPath, useDocument, useEffect, useNow, useState, useThrottled, whole } from './lib.js';
import { useFollow } from './live.js';
import { Empty, Live, Loading, Pill, Progress, standing, Trouble, unbegun } from './parts.js';

const PAGE = 50;

function Row({ task, now }) {
  const [status, label] = standing(task);
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
        <span class="task-progress"><${Progress} task=${task} /><small>${counts.total + unbegun(task) ? `${whole(done)} of ${whole(counts.total + unbegun(task))}` : 'no subagents yet'}${counts.failed ? html`, <b class="bad">${whole(counts.failed)} failed</b>` : null}</small></span>
        <span class="task-number" title="Tokens, in and out">${whole(sums.input_tokens + sums.output_tokens)}<small> tokens</small></span>
        <span class="task-number" title=${`$${sums.estimated_cost}`}>${cost(sums.estimated_cost)}</span>
        <span class="task-when" title=${moment(task.created_at)}>${ago(task.created_at, now)}<small>${duration(took)}</small></span>
      </a>
    </li>`;
}

export function Home() {
  const [limit, setLimit] = useState(PAGE);
  const { data, error, reload, refresh } = useDocument(`/api/tasks?limit=${limit}`);
  const again = useThrottled(refresh, 400);
  const state = useFollow('/api/changes', null, again);
  useEffect(() => { document.title = 'Tasks - Retinue'; }, []);
  useEffect(() => { if (state === 'live') again(); }, [state]);
  const now = useNow(true, 10000);
  const open = data ? data.filter(task => task.state === 'open').length : 0;
  return html`
    <div class="title-row"><h1>Tasks</h1>${data && data.length ? html`<span class="muted">${open} open</span>` : null}<${Live} state=${state} /></div>
    ${error ? html`<${Trouble} error=${error} retry=${reload} />` : null}
    ${!data && !error ? html`<${Loading} lines=${5} />` : null}
    ${data && !data.length ? html`
      <${Empty} title="No tasks yet">
        <p>Create one at the shell; it appears here by itself.</p>
        <pre tabindex="0" aria-label="What to type">retinue task create --title "Greetings"${'\n'}retinue subagent spawn TASK --id quick -- sh -c 'echo hello'</pre>
      <//>` : null}
    ${data && data.length ? html`<ul class="task-list card">${data.map(task => html`<${Row} key=${task.task_id} task=${task} now=${now} />`)}</ul>` : null}
    ${data && data.length === limit ? html`<p class="more"><button class="button" onClick=${() => setLimit(limit + PAGE)}>Show older tasks</button></p>` : null}`;
}

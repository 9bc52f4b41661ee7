// Costs of a task or of the whole root: in total, over time, by model, agent, task and subagent.
import { API, BASE, cost, get, html, line, save, setTitle, subagentPath, taskPath, useDocument, useEffect, useState, useThrottled, whole } from './lib.js';
import { useFollow } from './event_stream.js';
import { inAddress, keepInAddress } from './navigation.js';
import { Empty, Live, Loading, Stat, Trouble } from './components.js';
import { Crumbs } from './task.js';

const PERIODS = [['', 'Auto'], ['minute', 'Minutes'], ['hour', 'Hours'], ['day', 'Days']];
const PAGE = 1000; // model requests in one answer
const COLUMNS = ['entry', 'ts', 'task_id', 'subagent_id', 'attempt', 'model', 'status', 'seconds', 'input_tokens', 'cached_tokens', 'output_tokens', 'reasoning_tokens', 'estimated', 'priced', 'cost'];

// One cell of a CSV file. A child may choose the name of a model, but the name starts with its provider, so no cell
// starts a formula of a spreadsheet.
function cell(value) {
  const text = String(value ?? '');
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

async function saveRequests(path, name) {
  const rows = [COLUMNS.join(',')];
  for (let after = 0, page = []; after === 0 || page.length === PAGE;) {
    page = await get(`${path}/requests?after=${after}&limit=${PAGE}`);
    rows.push(...page.map(each => COLUMNS.map(column => cell(each[column])).join(',')));
    if (!page.length) break;
    after = page[page.length - 1].entry;
  }
  save(`${name}.csv`, 'text/csv', `${rows.join('\r\n')}\r\n`);
}

function Chart({ periods, period }) {
  const most = Math.max(...periods.map(each => each.cost));
  const tallest = Math.max(1, ...periods.map(each => each.input_tokens + each.output_tokens));
  // If no price is known, compare tokens.
  const share = each => (most ? each.cost / most : (each.input_tokens + each.output_tokens) / tallest);
  return html`
    <section class="card" aria-labelledby="over-time"><h2 id="over-time">${most ? 'Cost' : 'Tokens'} by ${period} <small class="muted">UTC</small></h2>
      <div class="bars-most" aria-hidden="true">${most ? cost(most) : `${whole(tallest)} tokens`}</div>
      <div class="bars" role="img" aria-label=${`${periods.length} periods, the most expensive ${cost(most)}`}>${periods.map(each => html`
        <i key=${each.name} style=${{ height: `max(2px, ${share(each) * 100}%)` }} title=${`${each.name.replace('T', ' ')}: ${cost(each.cost)}, ${whole(each.input_tokens + each.output_tokens)} tokens`}></i>`)}</div>
      <div class="bars-ends"><span>${periods[0].name.replace('T', ' ')}</span><span>${periods.length > 1 ? periods[periods.length - 1].name.replace('T', ' ') : ''}</span></div>
    </section>`;
}

function Sums({ id, title, rows, total, label }) {
  if (!rows.length) return null;
  return html`
    <section class="card" aria-labelledby=${id}><h2 id=${id}>${title}</h2>
      <div class="table-frame" tabindex="0" role="group" aria-label=${title}><table class="sums"><thead><tr><th>Name</th><th>Requests</th><th>In</th><th>Out</th><th>Cost</th></tr></thead>
        <tbody>${rows.map(each => html`<tr key=${`${each.task_id}/${each.name}`}><td>${label(each)}<i class="share" aria-hidden="true" style=${{ width: `${total.cost ? (each.cost / total.cost) * 100 : 0}%` }}></i></td>
          <td>${whole(each.requests)}</td><td>${whole(each.input_tokens)}</td><td>${whole(each.output_tokens)}</td><td title=${`$${each.cost}`}>${cost(each.cost)}${each.unpriced ? html` <small title=${`${each.unpriced} requests to models without a known price`}>+ ?</small>` : null}</td></tr>`)}</tbody></table></div>
    </section>`;
}

export function CostsPage({ task }) {
  const base = task ? `/api${taskPath(task)}` : API;
  const [period, setPeriod] = useState(() => inAddress('period'));
  useEffect(() => keepInAddress({ period }), [period]);
  const { data, error, reload, refresh } = useDocument(`${base}/costs${period ? `?period=${encodeURIComponent(period)}` : ''}`);
  const again = useThrottled(refresh, 2000);
  const state = useFollow(`${API}/changes`, null, again);
  const [failed, setFailed] = useState(null);
  useEffect(() => setTitle(`Costs${task ? ` of ${task}` : ''}`), []);
  const named = each => html`<span>${line(each.name) || html`<span class="muted">not named</span>`}</span>`;
  const total = data && data.total;
  const spent = total && (total.requests || total.input_tokens || total.output_tokens || total.cost);
  return html`
    ${task ? html`<${Crumbs} task=${task} place="costs" />` : html`<nav class="crumbs" aria-label="Where you are"><a href=${`${BASE}/`}>Tasks</a><span aria-hidden="true">/</span><span aria-current="page">costs</span></nav>`}
    <div class="title-row"><div class="title"><h1>Costs</h1><${Live} state=${state} /></div>
      <div class="chips" role="group" aria-label="Periods">${PERIODS.map(([name, label]) => html`<button key=${name} class="chip" aria-pressed=${String(period === name)} onClick=${() => setPeriod(name)}>${label}</button>`)}</div>
      <button class="button" disabled=${!spent} onClick=${() => saveRequests(base, `costs-${task || 'all'}`).then(() => setFailed(null), setFailed)}>Save as CSV</button></div>
    ${error || failed ? html`<${Trouble} error=${error || failed} retry=${error ? reload : null} />` : null}
    ${!data ? error ? null : html`<${Loading} lines=${5} />` : !spent ? html`<${Empty} title="Nothing was spent"><p>Requests to models are counted here as soon as a subagent makes one.</p><//>` : html`
      <dl class="stats">
        <${Stat} name="Cost" value=${cost(total.cost)} title=${`$${total.cost}`} more=${total.unpriced ? `${whole(total.unpriced)} ${total.unpriced === 1 ? 'request' : 'requests'} without a known price` : ''} />
        <${Stat} name="Requests" value=${whole(total.requests)} />
        <${Stat} name="Tokens in / out" value=${`${whole(total.input_tokens)} / ${whole(total.output_tokens)}`} />
      </dl>
      <div class="cost-cards">
        <${Chart} periods=${data.periods} period=${data.period} />
        <${Sums} id="by-model" title="By model" rows=${data.models} total=${total} label=${named} />
        <${Sums} id="by-agent" title="By agent" rows=${data.agents} total=${total} label=${named} />
        ${task ? null : html`<${Sums} id="by-task" title="By task" rows=${data.tasks} total=${total} label=${each => html`<a href=${`${taskPath(each.name)}/costs`}>${line(each.title)}</a>`} />`}
        <${Sums} id="by-subagent" title="By subagent" rows=${data.subagents} total=${total} label=${each => html`<a href=${`${subagentPath(each.task_id, each.name)}?tab=calls`}>${line(each.name)}</a>${task ? null : html` <small>${line(each.task_id)}</small>`}`} />
      </div>`}`;
}

// Page of one subagent.
import { advised, asTyped, cost, duration, html, line, plain, setTitle, subagentPath, taskPath, took, useDocument, useEffect, useNow, useRef, useState, useThrottled, whole } from './lib.js';
import { useFollow } from './event_stream.js';
import { ActionDialog, Toast } from './actions.js';
import { Json } from './events.js';
import { Track } from './lanes.js';
import { CompareAttempts } from './attempts.js';
import { Conversation, Files, Output } from './subagent_output.js';
import { Answer } from './markdown.js';
import { inAddress, keepInAddress } from './navigation.js';
import { Live, Loading, Missing, Pill, Stat, Tabs, Trouble } from './components.js';
import { Gates } from './gates.js';
import { Crumbs } from './task.js';
import { Attempts, Calls, Team, Usage } from './team.js';

const COMPARE = ['attempts', 'Attempts'];
const TABS = [['result', 'Result'], ['output', 'Output'], ['conversation', 'Conversation'], ['calls', 'Model calls'], ['files', 'Files'], ['contract', 'Contract']];

// Actions that make sense in this state; the steward may still refuse them.
function choices(data) {
  const working = ['pending', 'running', 'blocked'].includes(data.status);
  return [
    ['send', data.contract.team && data.status === 'running' && data.state === 'running', 'Send message', ''],
    ['continue', (data.state === 'closed' && data.task_state === 'open') || (data.status === 'blocked' && !data.gates.length), 'Continue', ''],
    ['integrate', data.integrated_by === 'parent', 'Join output', 'primary'],
    ['close', data.state !== 'closed' && (data.integrated_by === 'parent' || ['completed', 'failed', 'cancelled'].includes(data.status)), 'Close', ''],
    ['cancel', working, 'Cancel', 'danger-quiet'],
  ].filter(([, sensible]) => sensible);
}

function OwnLane({ lane, moving }) {
  const now = useNow(moving, 500);
  const from = Date.parse(lane.created_at);
  const ends = lane.spans.map(span => (span.end ? Date.parse(span.end) : now));
  const to = from + Math.max(50, (Math.max(...ends) - from) * 1.03);
  return html`
    <section class="card own-lane" aria-label="Its time">
      <${Track} lane=${lane} from=${from} to=${to} now=${now} />
      <ol class="own-spans">${lane.spans.map((span, index) => html`<li key=${index}>${span.kind === 'working' ? `attempt ${span.attempt}` : span.kind} <b>${duration(took(span, now))}</b></li>`)}</ol>
    </section>`;
}

function Result({ data }) {
  const { result } = data;
  if (!result) return html`<div class="panel"><p class="muted">${data.status === 'pending' ? `It waits for ${data.waiting_for || 'its turn'}.` : 'It has no result yet; it is at work.'}</p></div>`;
  return html`
    <div class="panel">
      <div class="result-head"><span class="muted">Result</span><${Pill} status=${result.status} />${result.completion_percentage != null ? html`<span class="muted">${result.completion_percentage}% done</span>` : null}<span class="muted">${duration(result.execution_time_seconds)}</span></div>
      ${result.error ? html`<p class="note bad">${plain(advised(result.error))}</p>` : null}
      ${result.error_output ? html`<h3>End of its output</h3><pre class="text" tabindex="0" aria-label="End of its output">${plain(result.error_output)}</pre>` : null}
      ${result.warning ? html`<p class="note warn">${plain(result.warning)}</p>` : null}
      ${(result.questions || []).length ? html`<h3>Questions</h3><ul>${result.questions.map((question, index) => html`<li key=${index}>${plain(question)}</li>`)}</ul>` : null}
      <h3>Answer</h3>
      ${result.answer != null ? html`<${Answer} text=${result.answer} />` : html`<p class="muted">None.</p>`}
      ${result.integration && Object.keys(result.integration).length ? html`<h3>Joined</h3><${Json} value=${result.integration} />` : null}
    </div>`;
}

function Contract({ data }) {
  const { contract } = data;
  const { step, execution = {}, permissions = {} } = contract;
  return html`
    <div class="panel">
      <h3>${line(step.title)}</h3>
      <pre class="text" tabindex="0" aria-label="Brief">${plain(step.description)}</pre>
      ${(contract.command || []).length ? html`<h3>Command</h3><pre class="text" tabindex="0" aria-label="Command">${plain(asTyped(contract.command))}</pre>` : null}
      ${(contract.team?.members || []).length ? html`<h3>Members</h3><ul>${contract.team.members.map((member, index) => html`<li key=${index}>${member.agent ? html`<b>${line(member.agent.name)}</b> ${line(member.agent.version)}, ` : null}<code>${line(member.model)}</code> through ${line(member.route)}</li>`)}</ul>` : null}
      <dl class="facts">
        <dt>Time limit</dt><dd>${duration(execution.attempt_timeout_ms / 1000)} an attempt</dd>
        <dt>Retries</dt><dd>${execution.max_retries}</dd>
        <dt>Tools</dt><dd>${(permissions.allowed_tools || []).map(line).join(', ') || 'none named'}</dd>
        <dt>May delegate</dt><dd>${permissions.can_spawn_children ? `yes, ${permissions.max_delegation_depth} deep` : 'no'}</dd>
        <dt>Fingerprint</dt><dd><code>${line(data.contract_sha256)}</code></dd>
      </dl>
      <details><summary>All terms</summary><${Json} value=${contract} /></details>
    </div>`;
}

export function SubagentPage({ task, id }) {
  const path = `/api${subagentPath(task, id)}`;
  const { data, error, reload, refresh } = useDocument(path);
  const [tab, setTab] = useState(() => inAddress('tab'));
  useEffect(() => keepInAddress({ tab }), [tab]);
  const [dialog, setDialog] = useState(null);
  const [toast, setToast] = useState(null);
  const [tick, setTick] = useState(0);
  const again = useThrottled(() => { refresh(); setTick(old => old + 1); }, 300);
  const first = useRef(null);
  if (data && first.current === null) first.current = data.last_seq;
  const alive = Boolean(data) && ['pending', 'running'].includes(data.status);
  const state = useFollow(first.current === null ? null : `/api${taskPath(task)}/events`, first.current, event => {
    if (event.agentInstance === data.agentInstance || event.type === 'task.closed') again();
  });
  useFollow(alive ? `${path}/live` : null, null, again);
  useEffect(() => setTitle(id, data?.gates.length), [data]);
  useEffect(() => { if (state === 'live') again(); }, [state]);
  const now = useNow(alive);
  if (!data) return html`<${Crumbs} task=${task} id=${id} />${error ? html`<${Missing} name=${id} error=${error} retry=${reload} />` : html`<${Loading} lines=${6} />`}`;
  const act = (kind, name) => setDialog({ kind, name, task, asked: [], path: `${path}/${kind}` });
  const done = said => {
    setDialog(null);
    if (said) setToast(said);
    again();
  };
  const shown = [...TABS, COMPARE].some(([name]) => name === tab) && (tab !== COMPARE[0] || data.attempts.length > 1) ? tab : data.result ? 'result' : 'output';
  const typed = data.contract.command || [];
  const usage = data.token_usage || {};
  const agents = (data.contract.team?.members || []).filter(member => member.agent);
  const elapsed = alive && data.started_at ? (now - Date.parse(data.started_at)) / 1000 : data.elapsed_seconds;
  return html`
    <${Crumbs} task=${task} id=${id} />
    <div class="title-row">
      <div class="title"><h1>${line(data.agentInstance)}</h1><${Pill} status=${data.status} /><${Live} state=${state} /></div>
      <div class="buttons">${choices(data).map(([kind, , label, style]) => html`<button key=${kind} class=${`button ${style}`} onClick=${() => act(kind, data.agentInstance)}>${label}</button>`)}</div>
    </div>
    ${typed.join(' ').startsWith(data.task.replace(/…$/, '')) ? null : html`<p class="about">${plain(data.task)}</p>`}
    ${typed.length ? html`<pre class="ran" tabindex="0" aria-label="The command it runs">${plain(asTyped(typed))}</pre>` : null}
    ${error ? html`<${Trouble} error=${error} retry=${reload} />` : null}
    <dl class="stats">
      <${Stat} name="State" value=${data.state.replace(/_/g, ' ')} more=${data.close_reason ? line(data.close_reason).replace(/_/g, ' ') : ''} />
      <${Stat} name="Attempt" value=${data.attempt || '–'} />
      ${agents.length ? html`<${Stat} name="Agent" value=${agents.map(member => line(member.agent.name)).join(', ')} more=${agents.map(member => line(member.agent.version)).join(', ')} />` : null}
      <${Stat} name="Elapsed" value=${duration(Math.max(0, elapsed))} />
      <${Stat} name="Tokens in / out" value=${`${whole(usage.input_tokens)} / ${whole(usage.output_tokens)}`} />
      <${Stat} name="Cost" value=${cost(usage.estimated_cost)} title=${`$${usage.estimated_cost ?? 0}`} more=${data.lane.unpriced ? 'no price known for some models' : ''} />
    </dl>
    <${Gates} task=${task} gates=${data.gates} act=${setDialog} />
    <${OwnLane} lane=${data.lane} moving=${data.state !== 'closed'} />
    <div class="columns">
      <section class="card main-column" aria-labelledby="did-title">
        <h2 id="did-title" class="hidden">What it did</h2>
        <${Tabs} label="What to see" chosen=${shown} choose=${setTab} tabs=${data.attempts.length > 1 ? [...TABS, COMPARE] : TABS} />
        <div role="tabpanel" aria-label=${shown} class="tabpanel">
          ${shown === 'result' ? html`<${Result} data=${data} />` : null}
          ${shown === 'output' ? html`<${Output} path=${path} attempts=${data.attempt} tick=${tick} />` : null}
          ${shown === 'conversation' ? html`<${Conversation} path=${path} tick=${tick} />` : null}
          ${shown === 'calls' ? html`<${Calls} paid=${data.paid} />` : null}
          ${shown === 'files' ? html`<${Files} path=${path} tick=${tick} />` : null}
          ${shown === 'attempts' ? html`<${CompareAttempts} path=${path} attempts=${data.attempts} />` : null}
          ${shown === 'contract' ? html`<${Contract} data=${data} />` : null}
        </div>
      </section>
      <div class="side-column">
        <${Team} team=${data.team} />
        <${Usage} paid=${data.paid} />
        <${Attempts} attempts=${data.attempts} />
        <section class="card"><h2>Where</h2><dl class="facts">
          <dt>Workspace</dt><dd><code class="path">${line(data.workspace)}</code>${data.workspace_removed ? html` <small class="muted">It was removed since.</small>` : null}${data.contract.outputs?.base ? html` <small class="muted">Do not run git there: its .git is the subagent's and can run commands.</small>` : null}</dd>
          <dt>Events</dt><dd><a href=${`${taskPath(task)}?subagent=${encodeURIComponent(id)}`}>all of its events</a></dd>
        </dl></section>
      </div>
    </div>
    <${ActionDialog} open=${dialog} done=${done} /><${Toast} said=${toast} gone=${() => setToast(null)} />`;
}

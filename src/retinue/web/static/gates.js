// Open gates: questions of subagents, and output to approve.
import { html, line, plain, subagentPath, taskPath } from './lib.js';

// `act` is called with the dialog to open. Gates of all tasks have a `task_id`, and then show their task.
export function Gates({ title = 'Waiting for you', task, gates, act }) {
  if (!gates.length) return null;
  const open = (gate, kind) => act({
    kind: gate.review ? { approve: 'approveOutput', reject: 'rejectOutput' }[kind] : kind,
    name: gate.agentInstance,
    task: gate.task_id || task,
    asked: kind === 'approve' ? gate.questions : [],
    path: `/api${taskPath(gate.task_id || task)}/gates/${encodeURIComponent(gate.gate_id)}/${kind}`,
  });
  return html`
    <section class="card gates" aria-labelledby="gates-title">
      <h2 id="gates-title">${title} <span class="badge">${gates.length}</span></h2>
      <ul>${gates.map(gate => {
        const address = subagentPath(gate.task_id || task, gate.agentInstance);
        return html`
          <li key=${`${gate.task_id}/${gate.gate_id}`}>
            <div><a href=${address}><strong>${line(gate.agentInstance)}</strong></a>${gate.task_id ? html` <a class="muted" href=${taskPath(gate.task_id)}>in ${line(gate.task_title)}</a>` : null}
              <ul>${gate.questions.map((question, index) => html`<li key=${index}>${plain(question)}</li>`)}</ul></div>
            <div class="gate-buttons">
              ${gate.review ? html`<a class="button" href=${`${address}?tab=files`}>See changes</a>` : null}
              <button class="button primary" onClick=${() => open(gate, 'approve')}>${gate.review ? 'Approve' : 'Answer'}</button>
              <button class="button" onClick=${() => open(gate, 'reject')}>Reject</button>
            </div>
          </li>`;
      })}</ul>
    </section>`;
}

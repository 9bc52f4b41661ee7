// Dialog that starts a team with a prompt, a plan, or one subagent.
import { API, html, line, post, subagentPath, taskPath, useEffect, useRef, useState } from './lib.js';
import { moveTo } from './navigation.js';

const EXAMPLE = 'goal: Greet\nsteps:\n  - id: hello\n    command: [sh, -c, echo hello]\n';
const EMPTY = { prompt: '', plan: EXAMPLE, secrets: '', agents: '', title: '', command: '', brief: '', agent: '', id: '' };
const KINDS = [['prompt', 'Prompt'], ['plan', 'Plan'], ['subagent', 'Subagent']];
const words = text => text.split(/[\s,]+/).filter(Boolean);

// Start what the form says and return its address. `made` keeps a created task for the next try.
async function start(kind, task, made, form) {
  if (kind === 'prompt') {
    const agents = words(form.agents);
    return taskPath((await post(`${API}/runs`, { prompt: form.prompt, ...(agents.length && { agents }) })).task_id);
  }
  if (kind === 'plan') {
    const secrets = words(form.secrets);
    return taskPath((await post(`${API}/plans`, { plan_text: form.plan, ...(secrets.length && { secrets }) })).task_id);
  }
  const brief = { context_paths: [], ...(form.command.trim() && { argv: ['sh', '-c', form.command] }) };
  if (form.brief.trim()) brief.task = form.brief;
  if (form.agent.trim()) brief.agent = form.agent.trim();
  if (form.id.trim()) brief.subagent_id = form.id.trim();
  if (!task && !made.current) made.current = (await post(`${API}/tasks`, { title: form.title })).task_id;
  const where = task || made.current;
  const { subagents } = await post(`/api${taskPath(where)}/subagents`, { tasks: [brief], queue: true });
  made.current = null;
  return subagentPath(where, subagents[0].subagent_id);
}

// `kind` is the name of one of KINDS, or empty while the dialog is closed; `choose` is called with another one. With
// `task`, the subagent is added to that task.
export function StartDialog({ kind, choose, task }) {
  const dialog = useRef(null);
  const made = useRef(null);
  const [form, setForm] = useState(EMPTY);
  const [state, set] = useState({ busy: false, error: null });
  useEffect(() => { if (kind && !dialog.current.open) dialog.current.showModal(); }, [kind]);
  if (!kind) return null;
  const close = () => dialog.current?.close();
  const change = name => event => setForm(old => ({ ...old, [name]: event.target.value }));
  const submit = async event => {
    event.preventDefault();
    set({ busy: true, error: null });
    try {
      const address = await start(kind, task, made, form);
      close();
      moveTo(address);
    } catch (error) {
      set({ busy: false, error });
    }
  };
  const field = (name, label, more = {}) => html`<label for=${`start-${name}`}>${label}</label><input id=${`start-${name}`} value=${form[name]} onInput=${change(name)} ...${more} />`;
  const area = (name, label, rows, more = {}) => html`<label for=${`start-${name}`}>${label}</label><textarea id=${`start-${name}`} rows=${rows} value=${form[name]} onInput=${change(name)} ...${more}></textarea>`;
  return html`
    <dialog ref=${dialog} class="dialog wide" aria-labelledby="start-heading" onClose=${() => choose('')}
      onCancel=${event => { if (state.busy) event.preventDefault(); }}>
      <form onSubmit=${submit}>
        <h2 id="start-heading">${task ? 'Add a subagent' : 'Start a run'}</h2>
        ${task ? null : html`<div class="chips" role="group" aria-label="What to start">${KINDS.map(([name, label]) => html`
          <button key=${name} type="button" class="chip" aria-pressed=${String(kind === name)} onClick=${() => choose(name)}>${label}</button>`)}</div>`}
        ${kind === 'plan' ? html`
          ${area('plan', 'Plan, as YAML', 12, { class: 'code', spellcheck: false, required: true, autofocus: true })}
          ${field('secrets', 'Secrets to hand out to its steps (optional, as NAME or NAME=file:PATH)', { spellcheck: false })}` : null}
        ${kind === 'prompt' ? html`
          ${area('prompt', 'Prompt for a team, which may delegate', 5, { required: true, autofocus: true })}
          ${field('agents', 'Coding agents (optional, as claude, codex)')}` : null}
        ${kind === 'subagent' ? html`
          ${task ? null : field('title', 'Title of its task', { required: true, autofocus: true })}
          ${area('command', 'Command, for the shell', 3, { class: 'code', spellcheck: false, required: !form.brief.trim(), autofocus: Boolean(task) })}
          ${area('brief', 'Or a brief, for a team or a coding agent', 3, { required: !form.command.trim() })}
          ${field('agent', 'Coding agent (optional, as claude)')}
          ${field('id', 'Name of the subagent (optional)', { spellcheck: false })}` : null}
        ${state.error ? html`<p class="dialog-error" role="alert">${line(state.error.message)}${state.error.hint ? ` (${line(state.error.hint)})` : ''}</p>` : null}
        <div class="dialog-buttons">
          <button type="button" class="button" disabled=${state.busy} onClick=${close}>Back</button>
          <button class="button primary" disabled=${state.busy}>${state.busy ? 'One moment…' : 'Start'}</button>
        </div>
      </form>
    </dialog>`;
}

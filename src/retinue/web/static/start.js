// Starting a run from the page: a prompt for a team, or a plan.
import { html, line, post, taskPath, useEffect, useRef, useState } from './lib.js';
import { moveTo } from './moving.js';

const EXAMPLE = 'goal: Greet\nsteps:\n  - id: hello\n    command: [sh, -c, echo hello]\n';

// `kind` is "prompt", "plan" or empty; `choose` is given the next one.
export function StartDialog({ kind, choose }) {
  const dialog = useRef(null);
  const [state, set] = useState({ prompt: '', plan_text: EXAMPLE, agents: '', busy: false, error: null });
  useEffect(() => { if (kind && !dialog.current.open) dialog.current.showModal(); }, [kind]);
  if (!kind) return null;
  const plan = kind === 'plan';
  const close = () => dialog.current?.close();
  const change = name => event => set(old => ({ ...old, [name]: event.target.value }));
  const submit = async event => {
    event.preventDefault();
    set(old => ({ ...old, busy: true, error: null }));
    const agents = state.agents.split(/[\s,]+/).filter(Boolean);
    try {
      const started = plan ? await post('/api/plans', { plan_text: state.plan_text }) : await post('/api/runs', { prompt: state.prompt, ...(agents.length && { agents }) });
      close();
      moveTo(taskPath(started.task_id));
    } catch (error) {
      set(old => ({ ...old, busy: false, error }));
    }
  };
  return html`
    <dialog ref=${dialog} class="dialog wide" aria-labelledby="start-title" onClose=${() => choose('')}
      onCancel=${event => { if (state.busy) event.preventDefault(); }}>
      <form onSubmit=${submit}>
        <h2 id="start-title">Start a run</h2>
        <div class="chips" role="group" aria-label="What to start">
          <button type="button" class="chip" aria-pressed=${String(!plan)} onClick=${() => choose('prompt')}>Prompt</button>
          <button type="button" class="chip" aria-pressed=${String(plan)} onClick=${() => choose('plan')}>Plan</button>
        </div>
        ${plan ? html`
          <label for="start-plan">Plan, as YAML</label>
          <textarea id="start-plan" class="code" rows="12" spellcheck="false" required value=${state.plan_text} onInput=${change('plan_text')}></textarea>` : html`
          <label for="start-prompt">Prompt for a team, which may delegate</label>
          <textarea id="start-prompt" rows="5" required value=${state.prompt} onInput=${change('prompt')}></textarea>
          <label for="start-agents">Coding agents (optional, as claude, codex)</label>
          <input id="start-agents" value=${state.agents} onInput=${change('agents')} />`}
        ${state.error ? html`<p class="dialog-error" role="alert">${line(state.error.message)}${state.error.hint ? ` (${line(state.error.hint)})` : ''}</p>` : null}
        <div class="dialog-buttons">
          <button type="button" class="button" disabled=${state.busy} onClick=${close}>Back</button>
          <button class="button primary" disabled=${state.busy}>${state.busy ? 'One moment…' : 'Start'}</button>
        </div>
      </form>
    </dialog>`;
}

// Actions of the user. Each is confirmed in a dialog and recorded as an event with `by: user`.
import { BASE, html, line, plain, post, subagentPath, taskPath, useEffect, useRef, useState } from './lib.js';
import { moveTo } from './navigation.js';

// The texts of each action's dialog. `field` is its text field, if it has one.
const ACTIONS = {
  cancel: {
    title: name => `Cancel ${name}?`,
    text: 'It is told to stop. What it had earned by then is recovered and kept.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    told: 'Cancelled', yes: 'Cancel it', danger: true,
  },
  continue: {
    title: name => `Continue ${name}`,
    text: 'A blocked subagent goes on with your answer. A closed one gets a successor in the same workspace.',
    field: { name: 'message', label: 'Message' },
    told: 'Continued', yes: 'Continue',
  },
  send: {
    title: name => `Send to ${name}`,
    text: 'It reads your message while it works.',
    field: { name: 'message', label: 'Message' },
    told: 'Sent to', yes: 'Send',
  },
  integrate: {
    title: name => `Join the output of ${name}?`,
    text: 'Its output is merged or copied, as its contract says.',
    told: 'Joined the output of', yes: 'Join',
  },
  close: {
    title: name => `Close ${name}?`,
    text: 'It keeps its result and takes no more work.',
    told: 'Closed', yes: 'Close it',
  },
  approve: {
    title: name => `Answer ${name}`,
    text: 'It reads your answer at the start of its next attempt.',
    field: { name: 'answer', label: 'Answer' },
    told: 'Answered', yes: 'Answer',
  },
  reject: {
    title: name => `Reject ${name}?`,
    text: 'It ends without an answer, as cancelled.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    told: 'Rejected', yes: 'Reject', danger: true,
  },
  approveOutput: {
    title: name => `Approve the output of ${name}?`,
    text: 'It passed its checks, and is merged or copied as it is now.',
    told: 'Approved the output of', yes: 'Approve',
  },
  rejectOutput: {
    title: name => `Reject the output of ${name}?`,
    text: 'The step fails and nothing of it is merged. Its work is kept.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    told: 'Rejected the output of', yes: 'Reject', danger: true,
  },
  cancelTask: {
    title: name => `Cancel everything in ${name}?`,
    text: 'Every subagent that works or waits is stopped. What they had earned is kept.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    told: 'Cancelled all in', yes: 'Cancel all', danger: true,
  },
  closeTask: {
    title: name => `Close ${name}?`,
    text: 'Its run gets its outcome, and the task takes no more work.',
    told: 'Closed', yes: 'Close the task',
  },
  retry: {
    title: name => `Retry ${name}?`,
    text: 'Its failed and never started steps run again, as a new task.',
    told: 'Retried', yes: 'Retry', then: answer => taskPath(answer.task_id),
  },
  apply: {
    title: name => `Apply the branch of ${name}?`,
    text: 'The branch that is checked out in your repository moves forward to it, with its files. Nothing moves if there are uncommitted changes or newer commits.',
    told: 'Applied the branch of', yes: 'Apply',
  },
  deleteTask: {
    title: name => `Delete ${name}?`,
    text: 'Its folder, events, results and costs are removed. Branches in your repository stay.',
    check: { name: 'force', label: 'Also delete files that were not merged anywhere' },
    told: 'Deleted', yes: 'Delete it', danger: true, then: () => `${BASE}/`,
  },
};

// The dialog of one action; `open` is { kind, name, task, path, asked } or null. When it closes, `done` is called with
// what the toast says: a text, and the name and address of a successor.
export function ActionDialog({ open, done }) {
  const dialog = useRef(null);
  const said = useRef(null);
  const [state, set] = useState({ text: '', checked: false, busy: false, error: null });
  useEffect(() => {
    if (!open) return;
    said.current = null;
    set({ text: '', checked: false, busy: false, error: null });
    dialog.current.showModal();
  }, [open]);
  if (!open) return null;
  const action = ACTIONS[open.kind];
  const close = () => dialog.current?.close();
  const submit = async event => {
    event.preventDefault();
    set(old => ({ ...old, busy: true, error: null }));
    const body = action.field && state.text ? { [action.field.name]: state.text } : {};
    if (action.check && state.checked) body[action.check.name] = true;
    try {
      const answer = await post(open.path, body);
      const next = answer.subagent_id !== open.name && answer.subagent_id;
      said.current = { text: `${action.told} ${open.name}`, moved: Boolean(action.then), ...(next && { next, href: subagentPath(open.task, next) }) };
      close();
      if (action.then) moveTo(action.then(answer));
    } catch (error) {
      set(old => ({ ...old, busy: false, error }));
    }
  };
  const field = action.field;
  const keyed = event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
  };
  // Remove the dialog only after it closed: until then the browser returns the focus to where it was.
  return html`
    <dialog ref=${dialog} class="dialog" aria-labelledby="dialog-title" onClose=${() => done(said.current)}
      onCancel=${event => { if (state.busy) event.preventDefault(); }}>
      <form onSubmit=${submit}>
        <h2 id="dialog-title">${line(action.title(open.name))}</h2>
        <p>${action.text}</p>
        ${open.asked.length ? html`<ul class="asked">${open.asked.map((question, index) => html`<li key=${index}>${plain(question)}</li>`)}</ul>` : null}
        ${field ? html`
          <label for="dialog-field">${field.label}</label>
          <textarea id="dialog-field" rows="3" autofocus value=${state.text} required=${!field.optional}
            onKeyDown=${keyed} onInput=${event => set(old => ({ ...old, text: event.target.value }))}></textarea>` : null}
        ${action.check ? html`<label class="dialog-check"><input type="checkbox" checked=${state.checked} onChange=${event => set(old => ({ ...old, checked: event.target.checked }))} />${action.check.label}</label>` : null}
        ${state.error ? html`<p class="dialog-error" role="alert">${line(state.error.message)}${state.error.hint ? ` (${line(state.error.hint)})` : ''}</p>` : null}
        <div class="dialog-buttons">
          <button type="button" class="button" disabled=${state.busy} onClick=${close}>Back</button>
          <button class=${`button ${action.danger ? 'danger' : 'primary'}`} disabled=${state.busy}>${state.busy ? 'One moment…' : action.yes}</button>
        </div>
      </form>
    </dialog>`;
}

// A short message about the last action.
export function Toast({ said, gone }) {
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(gone, said.next ? 12000 : 4000);
    return () => clearTimeout(timer);
  }, [said]);
  return html`<div class="toast" role="status">${said ? html`<span>${line(said.text)}${said.next ? html`, as <a href=${said.href}>${line(said.next)}</a>` : null}</span>` : null}</div>`;
}

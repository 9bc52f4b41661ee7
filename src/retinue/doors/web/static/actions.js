// What a person can do: each is asked once, in a dialog, and then it is an event with their name.
import { html, line, plain, post, useEffect, useRef, useState } from './lib.js';

// What an action says and asks. `field` is the one text that goes with it, if any.
const ACTIONS = {
  cancel: {
    title: name => `Cancel ${name}?`,
    text: 'It is told to stop. What it had earned by then is recovered and kept.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    yes: 'Cancel it', danger: true,
  },
  continue: {
    title: name => `Continue ${name}`,
    text: 'A blocked subagent goes on with your answer. A closed one gets a successor in the same workspace.',
    field: { name: 'message', label: 'Message' },
    yes: 'Continue',
  },
  send: {
    title: name => `Send to ${name}`,
    text: 'It reads your message while it works.',
    field: { name: 'message', label: 'Message' },
    yes: 'Send',
  },
  integrate: {
    title: name => `Join the output of ${name}?`,
    text: 'Its output is merged or copied, as its contract says.',
    yes: 'Join',
  },
  close: {
    title: name => `Close ${name}?`,
    text: 'It keeps its result and takes no more work.',
    yes: 'Close it',
  },
  approve: {
    title: name => `Answer ${name}`,
    text: 'It reads your answer at the start of its next attempt.',
    field: { name: 'answer', label: 'Answer' },
    yes: 'Answer',
  },
  reject: {
    title: name => `Reject ${name}?`,
    text: 'It ends without an answer, as cancelled.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    yes: 'Reject', danger: true,
  },
  cancelTask: {
    title: name => `Cancel everything in ${name}?`,
    text: 'Every subagent that works or waits is stopped. What they had earned is kept.',
    field: { name: 'reason', label: 'Reason (recorded)', optional: true },
    yes: 'Cancel all', danger: true,
  },
  closeTask: {
    title: name => `Close ${name}?`,
    text: 'Its run gets its outcome, and the task takes no more work.',
    yes: 'Close the task',
  },
};

// The dialog of one action; `open` is { kind, name, path } or null.
export function ActionDialog({ open, done }) {
  const dialog = useRef(null);
  const [state, set] = useState({ text: '', busy: false, error: null });
  useEffect(() => {
    if (!open) return;
    set({ text: '', busy: false, error: null });
    dialog.current.showModal();
  }, [open]);
  if (!open) return null;
  const action = ACTIONS[open.kind];
  const close = result => {
    dialog.current.close();
    done(result);
  };
  const submit = async event => {
    event.preventDefault();
    set(old => ({ ...old, busy: true, error: null }));
    const body = action.field && state.text ? { [action.field.name]: state.text } : {};
    try {
      await post(open.path, body);
      close(`${action.yes}: ${open.name}`);
    } catch (error) {
      set(old => ({ ...old, busy: false, error }));
    }
  };
  const field = action.field;
  return html`
    <dialog ref=${dialog} class="dialog" aria-labelledby="dialog-title" onCancel=${() => done(null)}>
      <form onSubmit=${submit}>
        <h2 id="dialog-title">${line(action.title(open.name))}</h2>
        <p>${action.text}</p>
        ${open.asked.length ? html`<ul class="asked">${open.asked.map((question, index) => html`<li key=${index}>${plain(question)}</li>`)}</ul>` : null}
        ${field ? html`
          <label for="dialog-field">${field.label}</label>
          <textarea id="dialog-field" rows="3" autofocus value=${state.text} required=${!field.optional}
            onInput=${event => set(old => ({ ...old, text: event.target.value }))}></textarea>` : null}
        ${state.error ? html`<p class="dialog-error" role="alert">${line(state.error.message)}${state.error.hint ? ` (${line(state.error.hint)})` : ''}</p>` : null}
        <div class="dialog-buttons">
          <button type="button" class="button" onClick=${() => close(null)}>Back</button>
          <button class=${`button ${action.danger ? 'danger' : 'primary'}`} disabled=${state.busy}>${state.busy ? 'One moment…' : action.yes}</button>
        </div>
      </form>
    </dialog>`;
}

// What was just done, said once and then gone.
export function Toast({ text, gone }) {
  useEffect(() => {
    if (!text) return undefined;
    const timer = setTimeout(gone, 4000);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class="toast" role="status">${text ? html`<span>${line(text)}</span>` : null}</div>`;
}

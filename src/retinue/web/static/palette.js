// The palette: every page and task by name, opened with Ctrl-K or Cmd-K.
import { API, BASE, get, html, line, taskPath, useEffect, useRef, useState, useThrottled } from './lib.js';
import { moveTo } from './navigation.js';

const PLACES = [['All tasks', '/'], ['Costs', '/costs'], ['Start a run from a prompt', '/?start=prompt'], ['Start a plan', '/?start=plan'], ['Start a subagent', '/?start=subagent'], ['Open tasks', '/?state=open'], ['Failed tasks', '/?state=failed']].map(([name, address]) => [name, BASE + address]);
const SHOWN = 12;

export function Palette() {
  const dialog = useRef(null);
  const [open, setOpen] = useState(false);
  const [text, setText] = useState('');
  const [tasks, setTasks] = useState([]);
  const [at, setAt] = useState(0);
  useEffect(() => {
    const keyed = event => {
      if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      // Not above an open dialog.
      if (!document.querySelector('dialog[open]')) setOpen(true);
    };
    addEventListener('keydown', keyed);
    return () => removeEventListener('keydown', keyed);
  }, []);
  const wanted = useRef('');
  const look = useThrottled(async () => {
    const asked = wanted.current;
    const found = await get(`${API}/tasks?limit=${SHOWN}&text=${encodeURIComponent(asked)}&quiet=1`).catch(() => []);
    if (asked === wanted.current) setTasks(found);
  }, 150);
  useEffect(() => {
    if (!open) return;
    setText('');
    setAt(0);
    wanted.current = '';
    look();
    dialog.current.showModal();
  }, [open]);
  const opener = html`<button class="button quiet palette-open" aria-label="Go to a page or a task" title="Go to a page or a task (Ctrl-K)" onClick=${() => setOpen(true)}><svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d="M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.3 10.3 14 14" /></svg></button>`;
  if (!open) return opener;
  const words = text.toLowerCase();
  const rows = [
    ...PLACES.filter(([name]) => name.toLowerCase().includes(words)).map(([name, address]) => ({ name, address })),
    ...tasks.map(task => ({ name: task.title, more: task.task_id, address: taskPath(task.task_id) })),
  ].slice(0, SHOWN);
  const chosen = Math.min(at, rows.length - 1);
  const take = row => {
    dialog.current.close();
    if (row) moveTo(row.address);
  };
  const keyed = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && rows.length) setAt((chosen + step + rows.length) % rows.length);
    if (event.key === 'Enter') take(rows[chosen]);
    if (step || event.key === 'Enter') event.preventDefault();
  };
  const typed = event => {
    wanted.current = event.target.value;
    setText(wanted.current);
    setAt(0);
    look();
  };
  return html`${opener}
    <dialog ref=${dialog} class="dialog palette" aria-label="Go to a page or a task" onClose=${() => setOpen(false)}>
      <input type="text" role="combobox" autofocus aria-label="Page or task" aria-expanded="true" aria-controls="palette-list" aria-autocomplete="list"
        aria-activedescendant=${rows.length ? `palette-${chosen}` : undefined} placeholder="Page or task" value=${text} onInput=${typed} onKeyDown=${keyed} />
      <ul id="palette-list" role="listbox" aria-label="Found">${rows.map((row, index) => html`
        <li key=${row.address} id=${`palette-${index}`} role="option" aria-selected=${String(index === chosen)} onClick=${() => take(row)}>${line(row.name)}${row.more ? html` <code>${line(row.more)}</code>` : null}</li>`)}</ul>
      ${rows.length ? null : html`<p class="muted">Nothing has this name.</p>`}
    </dialog>`;
}

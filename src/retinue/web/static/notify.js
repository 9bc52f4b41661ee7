// Notifications of the browser, only after a person asked for them.
import { html, useState } from './lib.js';

const KEY = 'retinue.notify';
const chosen = () => {
  try {
    return localStorage.getItem(KEY) === 'yes';
  } catch {
    return false;
  }
};
const allowed = () => 'Notification' in globalThis && Notification.permission === 'granted' && chosen();

// Tell of something unless the page is being looked at.
export function notify(title, body) {
  if (allowed() && (document.hidden || !document.hasFocus())) new Notification(title, { body: body.slice(0, 200), icon: '/static/icon.svg' });
}

export function Notify() {
  const [on, set] = useState(allowed);
  if (!('Notification' in globalThis)) return null;
  const change = async () => {
    const wanted = !on && (await Notification.requestPermission()) === 'granted';
    try {
      localStorage.setItem(KEY, wanted ? 'yes' : 'no');
    } catch { /* without storage there are no notifications */ }
    set(wanted && allowed());
  };
  return html`<button class="chip notify" aria-pressed=${String(on)} title="Notify me when a subagent asks something or a task ends" onClick=${change}>Notify me</button>`;
}

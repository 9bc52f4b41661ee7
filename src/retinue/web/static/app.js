// Frame of the page: routing, the header with the theme, and navigation.
import { about, BASE, begin, html, line, render, useEffect, useRef, useState } from './lib.js';
import { go, rememberScroll, restoreScroll } from './navigation.js';
import { Palette } from './palette.js';
import { useNotifications } from './notify.js';
import { Loading, Trouble } from './components.js';
import { CostsPage } from './costs.js';
import { Home } from './home.js';
import { TaskPage } from './task.js';
import { SubagentPage } from './subagent.js';

const ROUTES = [
  [/^\/$/, () => html`<${Home} key=${location.search} />`],
  [/^\/costs$/, () => html`<${CostsPage} key="costs" />`],
  [/^\/tasks\/([^/]+)\/costs$/, task => html`<${CostsPage} key=${`${task}/costs`} task=${task} />`],
  [/^\/tasks\/([^/]+)$/, task => html`<${TaskPage} key=${task} task=${task} />`],
  [/^\/tasks\/([^/]+)\/subagents\/([^/]+)$/, (task, id) => html`<${SubagentPage} key=${`${task}/${id}`} task=${task} id=${id} />`],
];

// Whether an address is a page of this root; pages of another root are loaded as a new document.
const isOurs = address => address.startsWith(`${BASE}/`) && (BASE !== '' || !address.startsWith('/roots/'));

function page(full) {
  const path = full.slice(BASE.length);
  for (const [pattern, make] of ROUTES) {
    const found = pattern.exec(path);
    if (found) return make(...found.slice(1).map(decodeURIComponent));
  }
  return html`<${Trouble} error=${new Error('There is no page at this address.')} />`;
}

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || 'auto');
  const next = { auto: 'light', light: 'dark', dark: 'auto' }[theme];
  const change = () => {
    if (next === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem('retinue.theme', next);
    } catch { /* it holds for this visit */ }
    set(next);
  };
  const label = { auto: 'as the system', light: 'light', dark: 'dark' }[theme];
  return html`<button class="button quiet theme" onClick=${change} title="Change colours" aria-label=${`Colours: ${label}. Change to ${next}`}>
    <span aria-hidden="true">${{ auto: '◐', light: '☀', dark: '☾' }[theme]}</span></button>`;
}

function RootChoice() {
  return html`<span class="root"><select aria-label="Root" value=${BASE} onChange=${event => location.assign(`${event.target.value}/`)}>${about().roots.map(each => html`
    <option key=${each.prefix} value=${each.prefix} selected=${each.prefix === BASE}>${line(each.root)}</option>`)}</select></span>`;
}

function Watch() {
  useNotifications();
  return null;
}

function App() {
  const [path, setPath] = useState(location.pathname);
  const [state, set] = useState({ ready: false, error: null });
  const main = useRef(null);
  const start = () => begin().then(() => set({ ready: true, error: null }), error => set({ ready: false, error }));
  useEffect(() => {
    start();
    rememberScroll();
    const moved = () => {
      setPath(location.pathname);
      restoreScroll();
    };
    addEventListener('popstate', moved);
    return () => removeEventListener('popstate', moved);
  }, []);
  // After a change of page the focus is at its top, for keyboards and screen readers.
  const before = useRef(path);
  useEffect(() => {
    if (before.current !== path) main.current.focus({ preventScroll: true });
    before.current = path;
  }, [path]);
  // Links within this root change the page without a new document.
  const clicked = event => {
    const link = event.target.closest('a[href^="/"]');
    if (!link || !isOurs(link.getAttribute('href')) || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute('href'));
    setPath(location.pathname);
  };
  const root = state.ready ? about().root : '';
  return html`
    <div class="frame" onClick=${clicked}>
      <a class="skip" href="#main">Skip to content</a>
      <header class="head">
        <a class="brand" href=${`${BASE}/`}><img src="/static/icon.svg" alt="" width="24" height="24" />Retinue</a>
        ${state.ready && about().roots.length > 1 ? html`<${RootChoice} />` : html`<span class="root" title=${root}>${line(root)}</span>`}
        ${state.ready ? html`<${Palette} /><${Watch} />` : null}
        <${Theme} />
      </header>
      <main id="main" tabindex="-1" ref=${main}>
        ${state.error ? html`<${Trouble} error=${state.error} retry=${start} />` : state.ready ? page(path) : html`<${Loading} />`}
      </main>
    </div>`;
}

render(html`<${App} />`, document.getElementById('app'));

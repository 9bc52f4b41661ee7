// Shared by all modules: markup, requests to the server, display of untrusted text, formats, hooks.
import { h, Fragment, render } from './vendor/preact.js';
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
import htm from './vendor/htm.js';
import { token } from './token.js';

export const html = htm.bind(h);
export { Fragment, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

class Problem extends Error {
  constructor({ message, hint, code }) {
    super(message);
    this.hint = hint;
    this.code = code;
  }
}

// Prefix of the addresses of this root; the server may show several.
export const BASE = (/^\/roots\/\d+(?=\/)/.exec(location.pathname) || [''])[0];
export const API = `/api${BASE}`;

let session = null;
export const about = () => session;

// The error of a result, with advice if there is any.
export const advised = error => (Object.hasOwn(session.advice, error) ? `${error}: ${session.advice[error]}` : error);

async function answered(response) {
  let document = null;
  try {
    document = await response.json();
  } catch { /* not JSON: the status says enough */ }
  if (response.ok) return document;
  const known = document && document.error;
  throw new Problem(known || { message: `The server answered ${response.status}.` });
}

async function ask(path, options) {
  try {
    return await answered(await fetch(path, options));
  } catch (error) {
    if (error instanceof Problem || error.name === 'AbortError') throw error;
    throw new Problem({ message: 'The server of this page does not answer.', hint: 'is "retinue ui" still running?' });
  }
}

export const get = (path, signal) => ask(path, { signal, headers: { 'x-csrf-token': token() } });

export function post(path, body = {}) {
  const headers = { 'content-type': 'application/json', 'x-csrf-token': token() };
  return ask(path, { method: 'POST', headers, body: JSON.stringify(body) });
}

export async function begin() {
  session = await get(`${API}/session`);
}

export const taskPath = task => `${BASE}/tasks/${encodeURIComponent(task)}`;
export const subagentPath = (task, id) => `${taskPath(task)}/subagents/${encodeURIComponent(id)}`;

// Control characters, direction marks and zero-width characters. The joiners U+200C and U+200D are not among them,
// because scripts and emoji need them.
const ACTIVE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const code = found => `\\u${found.charCodeAt(0).toString(16).padStart(4, '0')}`;

// Return untrusted text with these characters escaped.
export const plain = text => String(text ?? '').replace(/\r\n/g, '\n').replace(ACTIVE, code);
export const line = text => plain(String(text ?? '').replace(/[\r\n\t]+/g, ' '));

export function cost(value) {
  const known = Number(value) || 0;
  if (known === 0) return '$0.00';
  if (known < 0.0001) return '<$0.0001';
  return known < 1 ? `$${known.toFixed(4)}` : `$${known.toFixed(2)}`;
}
export const whole = value => (Number(value) || 0).toLocaleString('en-US');

// Seconds of a span of a lane; an attempt has its own figure, without the launch.
export const took = (span, now) => span.seconds ?? ((span.end ? Date.parse(span.end) : now) - Date.parse(span.start)) / 1000;

export function duration(seconds) {
  if (!(seconds >= 0)) return '–';
  if (seconds < 0.1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 10) return `${seconds.toFixed(1)}s`;
  if (seconds < 60) return `${Math.round(seconds)}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${String(Math.floor(seconds % 60)).padStart(2, '0')}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h ${String(minutes % 60).padStart(2, '0')}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  return size < 1048576 ? `${(size / 1024).toFixed(1)} KB` : `${(size / 1048576).toFixed(1)} MB`;
}

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });
const MOMENT = new Intl.DateTimeFormat('en-GB', {
  day: 'numeric', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3, timeZoneName: 'short',
});
// Times in the reader's time zone; a dash for anything else.
const told = (format, stamp) => (Number.isNaN(Date.parse(stamp)) ? '–' : format.format(new Date(stamp)));
export const clock = stamp => told(CLOCK, stamp);
export const clockMs = stamp => `${clock(stamp)}.${String(stamp).slice(20, 23)}`;
export const moment = stamp => told(MOMENT, stamp);
const day = stamp => told(DAY, stamp);
export const seconds = (from, to) => (Date.parse(to) - Date.parse(from)) / 1000;

export function ago(stamp, now) {
  const passed = Math.max(0, (now - Date.parse(stamp)) / 1000);
  return passed < 5 ? 'just now' : passed < 86400 * 2 ? `${duration(passed).split(' ')[0]} ago` : day(stamp);
}

// Hook: a JSON document of the server. It is fetched when the path changes, by `reload` (for the user), and by
// `refresh` (for the page itself, which does not start a steward).
export function useDocument(path) {
  const [state, set] = useState({ path: null, data: null, error: null });
  const current = useRef({ path: null, busy: false, again: null });
  const load = useCallback(async quiet => {
    const mine = current.current;
    if (mine.busy) {
      mine.again = { quiet: quiet && mine.again?.quiet !== false };
      return;
    }
    mine.busy = true;
    const asked = mine.path;
    try {
      const data = await get(quiet ? `${asked}${asked.includes('?') ? '&' : '?'}quiet=1` : asked);
      if (mine.path === asked) set({ path: asked, data, error: null });
    } catch (error) {
      if (mine.path === asked) set(before => ({ path: asked, data: before.path === asked ? before.data : null, error }));
    } finally {
      mine.busy = false;
      const { again } = mine;
      mine.again = null;
      if (mine.path && mine.path !== asked) load(false);
      else if (mine.path && again) load(again.quiet);
    }
  }, []);
  useEffect(() => {
    current.current.path = path;
    if (path) load(false);
    return () => { current.current.path = null; };
  }, [path]);
  const mine = state.path === path;
  const reload = useCallback(() => load(false), []);
  const refresh = useCallback(() => load(true), []);
  return { data: mine ? state.data : null, error: mine ? state.error : null, reload, refresh };
}

// Hook: a function that calls `act` at most once in `ms` milliseconds, at once after a pause.
export function useThrottled(act, ms) {
  const latest = useRef(act);
  latest.current = act;
  const timer = useRef({ id: 0, last: 0 });
  useEffect(() => () => clearTimeout(timer.current.id), []);
  return useCallback(() => {
    const mine = timer.current;
    if (mine.id) return;
    const wait = Math.max(0, mine.last + ms - performance.now());
    mine.id = setTimeout(() => {
      mine.id = 0;
      mine.last = performance.now();
      latest.current();
    }, wait);
  }, [ms]);
}

// Hook: the current time, updated every `ms` milliseconds while `moves` is true.
export function useNow(moves, ms = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    if (!moves) return undefined;
    set(Date.now());
    const timer = setInterval(() => set(Date.now()), ms);
    return () => clearInterval(timer);
  }, [moves, ms]);
  return now;
}

export function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 719px)'), []);
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const changed = () => set(query.matches);
    query.addEventListener('change', changed);
    return () => query.removeEventListener('change', changed);
  }, []);
  return narrow;
}

// Set the title of the browser's tab, with the numbers of open gates and running subagents.
export function setTitle(name, waiting = 0, running = 0) {
  const said = [waiting ? `${waiting} waiting` : '', running ? `${running} running` : ''].filter(Boolean).join(', ');
  document.title = `${said ? `(${said}) ` : ''}${line(name)} - Retinue`;
}

const quoted = words => words.map(word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`)).join(' ');
// A command as one would type it, quoted for a shell. A script that would need quotes within quotes is on the lines
// below its shell, unquoted.
export const asTyped = words => (words.length === 3 && words[1] === '-c' && /['\n]/.test(words[2]) ? `${quoted(words.slice(0, 2))}\n${words[2]}` : quoted(words));

// Offer a text as a file.
export function save(name, kind, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

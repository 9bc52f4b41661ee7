// Following the server: every message once, from where the last one was, whatever happens between.
import { API, useEffect, useRef, useState } from './lib.js';
import { token } from './token.js';

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

// Calls `take` for each message; gives back what ends it. `since` is where it begins. A hidden page
// is followed only where it is asked for, since a browser has few connections for one server.
export function follow(path, { since, take, say, hidden = false }) {
  let source = null;
  let last = since;
  let wait = FIRST_WAIT;
  let timer = 0;
  let over = false;
  let answers = false; // the server does, so that it is the steward who is missing

  function open(isQuiet) {
    const query = new URLSearchParams();
    if (last !== null) query.set('since', last);
    if (isQuiet) query.set('quiet', '1');
    query.set('csrf', token());
    const mine = new EventSource(`${path}?${query}`);
    source = mine;
    mine.onopen = () => {
      wait = FIRST_WAIT;
      answers = false;
      say('live');
    };
    mine.onmessage = message => {
      const seq = message.lastEventId === '' ? null : Number(message.lastEventId);
      if (seq !== null) {
        if (last !== null && seq <= last) return;
        last = seq;
      }
      take(JSON.parse(message.data));
    };
    mine.addEventListener('end', () => {
      over = true;
      mine.close();
      say('ended');
    });
    mine.onerror = () => {
      // The browser's own retry would start a steward that was stopped on purpose.
      mine.close();
      if (over || source !== mine) return;
      say(answers ? 'stopped' : 'lost');
      timer = setTimeout(again, wait);
      wait = Math.min(LONGEST_WAIT, wait * 2);
    };
  }

  // A server that was started anew knows no session of before: asking on would be in vain.
  async function again() {
    const status = await fetch(`${API}/session`, { headers: { 'x-csrf-token': token() } }).then(answer => answer.status, () => 0);
    if (over || source === null) return;
    answers = status === 200;
    if (status === 401 || status === 403) say('out');
    else open(true);
  }

  function seen() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
    if ((hidden || !document.hidden) && !over) open(last !== null);
  }

  seen();
  if (!hidden) document.addEventListener('visibilitychange', seen);
  return () => {
    over = true;
    document.removeEventListener('visibilitychange', seen);
    clearTimeout(timer);
    if (source) source.close();
  };
}

// The state of a stream: connecting, live, lost, stopped, ended, or out of its session. Nothing is followed without a path.
export function useFollow(path, since, take) {
  const [state, set] = useState('connecting');
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    if (!path) return undefined;
    set('connecting');
    return follow(path, { since, take: document => latest.current(document), say: set });
  }, [path]);
  return state;
}

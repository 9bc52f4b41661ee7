// Event streams of the server, resumed after the last message when the connection was lost.
import { API, useEffect, useRef, useState } from './lib.js';
import { token } from './token.js';

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

// Call `take` for each message after `since`; return a function that ends the stream. A browser has few connections to
// one server, so a hidden page closes its stream unless `hidden` is set.
export function follow(path, { since, take, say, hidden = false }) {
  let source = null;
  let last = since;
  let wait = FIRST_WAIT;
  let timer = 0;
  let over = false;
  let answers = false; // whether the page's server answers; if it does, the steward is missing

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

  // After a restart the server does not know this session, and retrying would not help.
  async function again() {
    const mine = source;
    const status = await fetch(`${API}/session`, { headers: { 'x-csrf-token': token() } }).then(answer => answer.status, () => 0);
    // The page was hidden or shown meanwhile: that has closed this stream, and may have opened another.
    if (over || source !== mine) return;
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

// Hook: the state of a stream (connecting, live, lost, stopped, ended, or out: no session). Without a path there is none.
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

// The other roots of this server, with the numbers of open gates and running subagents.
import { about, BASE, get, html, line, useEffect, useState } from './lib.js';

const OFTEN_MS = 10000;
const NEWEST = 50; // newest tasks of a root that are counted

// Count the open gates and running subagents of a root; this does not start a steward.
async function count(prefix) {
  try {
    const [gates, tasks] = await Promise.all([get(`/api${prefix}/gates?quiet=1`), get(`/api${prefix}/tasks?limit=${NEWEST}&quiet=1`)]);
    const running = tasks.reduce((sum, task) => sum + task.counts.running, 0);
    return [gates.length ? `${gates.length} waiting for you` : '', `${running} running`].filter(Boolean).join(', ');
  } catch (error) {
    return error.code === 'no_steward' ? 'nothing runs' : line(error.message);
  }
}

export function OtherRoots() {
  const others = about().roots.filter(each => each.prefix !== BASE);
  const [said, set] = useState({});
  // A stream for each root would use up the few connections that a browser has for one server.
  useEffect(() => {
    if (!others.length) return undefined;
    let gone = false;
    const look = async () => {
      if (document.hidden) return;
      const found = await Promise.all(others.map(async each => [each.prefix, await count(each.prefix)]));
      if (!gone) set(Object.fromEntries(found));
    };
    look();
    const timer = setInterval(look, OFTEN_MS);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, []);
  if (!others.length) return null;
  return html`
    <section class="home-section" aria-labelledby="roots-title">
      <h2 id="roots-title">Other roots <span class="badge">${others.length}</span></h2>
      <ul class="card roots">${others.map(each => html`
        <li key=${each.prefix}><a href=${`${each.prefix}/`}><code>${line(each.root)}</code></a> <span class="muted">${said[each.prefix] || ''}</span></li>`)}</ul>
    </section>`;
}

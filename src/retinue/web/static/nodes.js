// The machines on which subagents of this root can run.
import { API, duration, html, line, useDocument, useEffect } from './lib.js';
import { Dot } from './components.js';

const OFTEN_MS = 10000;
const TONES = { up: 'completed', draining: 'cancelled', suspected: 'cancelled', lost: 'failed' };

export function NodesPanel() {
  const { data, refresh } = useDocument(`${API}/nodes`);
  const connected = Boolean(data && data.connected);
  // No event reports changes of nodes, so poll.
  useEffect(() => {
    if (!connected) return undefined;
    const timer = setInterval(() => { if (!document.hidden) refresh(); }, OFTEN_MS);
    return () => clearInterval(timer);
  }, [connected]);
  if (!connected) return null;
  return html`
    <section class="home-section" aria-labelledby="nodes-title">
      <h2 id="nodes-title">Nodes <span class="badge">${data.nodes.length}</span></h2>
      ${data.current ? null : html`<p class="note warn">The hub does not answer. These are the last known states.</p>`}
      ${data.nodes.length ? html`<ul class="card nodes">${data.nodes.map(node => html`
        <li key=${node.id}><${Dot} status=${node.current ? TONES[node.state] || 'pending' : 'pending'} /><strong>${line(node.node)}</strong>
          <span>${line(node.state)}${node.current ? '' : ' (old)'}</span><span class="muted">${node.busy} of ${node.slots} at work, heard ${duration(node.heard_seconds)} ago</span>
          <span class="muted">${node.labels.map(line).join(', ')}</span></li>`)}</ul>`
      : html`<p class="muted">No node has joined. <code>retinue hub invite</code> says how one does.</p>`}
    </section>`;
}

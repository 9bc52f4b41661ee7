// The machines on which subagents of this root can run.
import { API, duration, html, line, useDocument, useEffect } from './lib.js';
import { Pill } from './components.js';

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
        <li key=${node.id}><strong title=${line(node.node)}>${line(node.node)}</strong>
          <span><${Pill} status=${node.current ? TONES[node.state] || 'pending' : 'pending'} label=${`${node.state}${node.current ? '' : ' (old)'}`} /></span>
          <span class="node-slots" aria-hidden="true"><i style=${{ width: `${Math.min(100, (node.busy / Math.max(1, node.slots)) * 100)}%` }}></i></span>
          <span class="muted">${node.busy} of ${node.slots} at work, heard ${node.heard_seconds < 1 ? 'now' : `${duration(node.heard_seconds)} ago`}</span>
          <span class="node-labels">${node.labels.map(label => html`<small key=${label} class="node-mark">${line(label)}</small>`)}</span></li>`)}</ul>`
      : html`<p class="muted">No node has joined. <code>retinue hub invite</code> says how one does.</p>`}
    </section>`;
}
